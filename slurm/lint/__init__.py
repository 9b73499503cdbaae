"""`muster lint`: reads a batch script as sbatch and bash do, and says what will go wrong, and when.

Nothing of the file is run. directives.py reads the #SBATCH lines, shell.py the commands, words.py
each word of them, script.py joins them; rules/ holds the rules, a function each; fix.py makes the
edits that are safe.
"""

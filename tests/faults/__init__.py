"""Faults that public users report, each a verb on a real Slurm, and a campaign that runs them all.

process/ node/ checkpoint/ scheduler/   one file, one fault; discovered, never registered
fault.py      what a fault is and what is expected of a run that meets it
stage.py      what a fault has at hand when it strikes
rehearsal.py  one fault on one recipe, from sbatch to the row of the table
campaign.py   all rows; storm.py: random ones, again and again
"""

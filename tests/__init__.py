"""Tests, and the programs that break, record and measure.

A package, since a folder without this file loses against a `tests` that some library installs: NeMo
does, and nothing of ours could be started by `python -m tests.` there.
"""

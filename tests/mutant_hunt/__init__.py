"""Mutants of the smallest real exports, of both exporters and many families.

python -m tests.mutant_hunt --count 10000 --seed 15 -o DIR   hunts in all of them, writes findings to DIR
"""

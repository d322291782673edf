"""Forecasts and progress of studies: jobs, hours, and the state of each run.

Estimates come from runs that were timed before; an unknown amount is reported as unknown.
Nothing here changes a file of a run or of a study.
"""

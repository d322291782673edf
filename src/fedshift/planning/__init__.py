"""Forecasts and progress of studies: the jobs that would run, their hours, and the state of each run.

Hours are estimated from runs that were timed before; if there are none, they are reported as unknown.
No function here changes a file of a run or of a study.
"""

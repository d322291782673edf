"""What studies will take, and how they stand: jobs, hours, disk, traffic, and the state of each run.

Estimates come from runs that were timed before; what is unknown is said to be unknown.
Nothing here changes a file of a run or of a study, its traffic ledger apart.
"""

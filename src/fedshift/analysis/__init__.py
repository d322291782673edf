"""The statistics of a study: scores of predictions, means over seeds, differences and their intervals, traffic.

All numbers are keyed by the ids of conditions (algorithm x batch-norm policy x settings) and of inferences (ways to
predict a site). Titles and sentences for people, and pages, belong to the layers above.
"""

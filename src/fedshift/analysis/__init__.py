"""Numbers from predictions: scores, means over seeds, gaps and gains, and intervals over patients; and the traffic.

Everything is keyed by the ids of conditions and inferences.
Words, pages and published values belong to the layers above.
"""

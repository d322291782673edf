"""The coordinator of a federation: the server, without any data of the sites.

How to use it::

    coordinator = Coordinator.open(specification, transport, digest=digest)     # asks all sites to join
    coordinator.run(after_round=save)                                           # or: coordinator.round(), one by one

where `save(coordinator)` writes `coordinator.tensors()` (tensors by name) and `coordinator.progress()` (plain data for
JSON) whole or not at all. A new process goes on after the last round that was saved, without asking sites to join::

    coordinator = Coordinator.resume(specification, transport, tensors, progress, digest=digest)
    coordinator.run(after_round=save)

`specification` and `digest` are those of `Site.open`. Save after every round: a site keeps its state after the last
round that counted and after the one that it trained since, and no older one.
"""

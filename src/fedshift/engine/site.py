"""A site of a federation: its data, its local training, and what stays there between rounds.

How to use it, from one process for each message::

    specification = Specification.open(model, algorithm=..., bn=..., addon=..., training=..., seed=..., task=...)
    site = Site.open("north", specification, train, validation, folder, digest=digest)
    reply = site.answer(message)    # raises UserError for what the site refuses: a transport turns it into a Fault

`model` is the network with the initial weights of the run, equal at all sites and at the coordinator (see
`models.initialise`); the other parameters are those of `Federation`. `train` and `validation` are `Samples` or pairs
(x, y) of this site alone; `validation` may be None. `folder` belongs to this run and this site: the state after each
round that counts is kept there, so that a new process can open the site for every message. `digest` names specification
and code, such as `core.digest.of([run.id, code])`; a message with another digest is refused.
"""

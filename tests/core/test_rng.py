"""Keyed randomness."""

from __future__ import annotations

import hashlib

import numpy as np
import torch

from fedshift.core.rng import seed_of, stream, torch_stream


def test_a_stream_is_numpys_pcg64_seeded_with_the_sha256_of_its_key() -> None:
    entropy = int.from_bytes(hashlib.sha256(b"3\x1f1\x1fsite a\x1fbatches").digest()[:16], "big")
    expected = np.random.Generator(np.random.PCG64(entropy)).permutation(20)
    assert stream(3, 1, "site a", "batches").permutation(20).tolist() == expected.tolist()


def test_streams_depend_on_their_key_alone() -> None:
    first = stream(0, 1, "a", "batches").random(5)
    stream(9, "other").random(100)
    torch.rand(3)
    assert np.array_equal(stream(0, 1, "a", "batches").random(5), first)


def test_every_part_of_a_key_counts_and_parts_do_not_run_together() -> None:
    keys = [(0, 1, "a", "x"), (1, 1, "a", "x"), (0, 2, "a", "x"), (0, 1, "b", "x"), (0, 1, "a", "y"), (0, 1, "ax")]
    keys += [(1, 23), (12, 3), ("1", "2", "3"), ("a", ""), ("", "a"), ("a",)]
    assert len({float(stream(*key).random()) for key in keys}) == len(keys)


def test_streams_are_independent_of_each_other() -> None:
    """Neighbouring keys are uncorrelated: 200 pairs of 1000 draws, whose correlation has standard deviation 0.032."""
    draws = np.stack([stream(seed, "batches").standard_normal(1000) for seed in range(201)])
    correlation = np.array([np.corrcoef(*draws[i : i + 2])[0, 1] for i in range(200)])
    assert abs(correlation.mean()) < 4 * 0.032 / 200**0.5
    assert abs(correlation).max() < 5 * 0.032


def test_seeds_have_63_bits() -> None:
    seeds = [seed_of(k, "dropout") for k in range(200)]
    assert all(0 <= s < 2**63 for s in seeds)
    assert max(seeds) > 2**62
    assert len(set(seeds)) == 200


def test_torch_streams_depend_on_their_key_and_leave_the_global_one_alone() -> None:
    before = torch.random.get_rng_state()
    one, same, other = (torch.rand(4, generator=torch_stream(*key)) for key in ((1, "a"), (1, "a"), (1, "b")))
    assert torch.equal(one, same)
    assert not torch.equal(one, other)
    assert torch.equal(torch.random.get_rng_state(), before)

"""A checkpointed run of Gibbs sweeps in processes that are killed at random moments.

``python checkpoint_runs.py FOLDER SEED ...`` makes it in FOLDER/SEED and prints how many processes
were killed. JAX starts its threads in the forked processes only, so nothing here may compute on
import.
"""

import os
import random
import signal
import sys
import time
from pathlib import Path

import jax
import jax.numpy as jnp

from jaxmrf.checkpoints import run
from jaxmrf.graphs import grid, sweep_plan
from jaxmrf.models import Ising
from jaxmrf.sampling import gibbs

NUM_STEPS, EVERY = 40, 2
SQUARE = grid((2, 2))
PLAN = sweep_plan(SQUARE)


def model():
    return Ising(jnp.full(SQUARE.num_edges, 0.4), jnp.zeros(SQUARE.num_nodes))


def sweep(key, states, model, plan):
    """A step of a kernel; its Info holds the draws."""
    states = gibbs.sweep(key, states, model, plan)
    return states, states


def start():
    return gibbs.init(jax.random.key(1), model(), PLAN, num_chains=3)


def sample(folder):
    key, args = jax.random.key(0), (model(), PLAN)
    return run(folder, key, start(), sweep, NUM_STEPS, every=EVERY, args=args)


def num_pieces(folder):
    return len(list(folder.glob("steps_*.npz")))


def run_in_killed_processes(folder, rng):
    """Kill the run after a random number of pieces until it completes; the number of kills."""
    num_kills = 0
    while True:
        aim = num_pieces(folder) + rng.randint(1, NUM_STEPS // EVERY // 2)
        if (child := os.fork()) == 0:
            sample(folder)
            os._exit(0)
        ended = 0
        while num_pieces(folder) < aim and not ended:
            time.sleep(0.0005)
            ended, status = os.waitpid(child, os.WNOHANG)
        if not ended:
            time.sleep(rng.uniform(0, 0.01))  # a piece takes about as long
            os.kill(child, signal.SIGKILL)
            _, status = os.waitpid(child, 0)
        if not os.WIFSIGNALED(status):
            return num_kills
        num_kills += 1


if __name__ == "__main__":
    for seed in sys.argv[2:]:
        path = Path(sys.argv[1]) / seed
        path.mkdir()
        print(run_in_killed_processes(path, random.Random(int(seed))), flush=True)

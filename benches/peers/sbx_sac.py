"""SAC of SBX on HalfCheetah-v4: one environment, batches of 256, an update of critics and actor on each step.

Reads the name of a row on each line and answers with its steps per second while learning.
"""

import sys
import time

import gymnasium
from sbx import SAC

START, STEPS = 1000, 1000
MODELS = {"sbx_sac": SAC}
models = {}
for line in sys.stdin:
    row = line.strip()
    if row not in models:
        env = gymnasium.make("HalfCheetah-v4")
        models[row] = MODELS[row]("MlpPolicy", env, learning_starts=START, batch_size=256, seed=1)
        models[row].learn(START + 200)  # Fills the buffer, and compiles.
    start = time.perf_counter()
    models[row].learn(STEPS, reset_num_timesteps=False)
    print(STEPS / (time.perf_counter() - start), flush=True)

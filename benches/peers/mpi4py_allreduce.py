"""Times Allreduce of mpi4py, started by benches/allreduce.rs."""

import time

import numpy as np
from mpi4py import MPI

world = MPI.COMM_WORLD
for size in (1_000, 100_000, 1_700_000):
    row = f"mpi4py    {size:>9} numbers"
    for name, dtype in (("f32", np.float32), ("i64", np.int64)):
        numbers, sums = np.ones(size, dtype), np.empty(size, dtype)
        times = []
        for _ in range(50):
            start = time.perf_counter()
            world.Allreduce(numbers, sums)
            times.append((time.perf_counter() - start) * 1e6)
        row += f"  {name} {sorted(times)[25]:>9.1f} us"
    if world.rank == 0:
        print(row, flush=True)

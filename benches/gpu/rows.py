"""Rows of `benches/gpu/run`: what is measured, the cheapest first.

A row has a name, the table of docs/gpus.md that it is in, a title, a unit, a limit in seconds for each side,
the kind of measurement, the words of our command (`ours`), and, for most, those of the other side (`peer` of
`side`, or `jax`). `cpu` rows leave the GPU alone.
"""

TABLES = ("calls", "leanrl", "rollouts", "loops", "records", "cpu")
LOWER_IS_BETTER = ("us", "ms", "s")
ROWS = []


def row(name, table, title, unit, limit, kind, ours, peer=None, side="LeanRL", **more):
    more |= {"peer": peer.split(), "side": side} if peer else {}
    ROWS.append({"name": name, "table": table, "title": title, "unit": unit, "limit": limit, "kind": kind,
                 "ours": ours.split(), **more})


def bench(name, table, title, unit, limit, ours, line, jax=True, **more):
    row(name, table, title, unit, limit, "bench", ours, line=line, jax=jax, **more)


# Calls and single programs.
bench("call_2", "calls", "call that adds two arrays of 8 floats", "us", 90, "dispatch", "add of 8 floats")
bench("call_30", "calls", "call that adds 1 to each of 30 arrays", "us", 90, "dispatch", "30 leaves in and out")
bench("call_30_donated", "calls", "the same, arguments donated", "us", 90, "dispatch", "30 leaves in and out, donated")
bench("step", "calls", "PPO-Atari gradient step, 256 images", "ms", 90, "ppo_atari step bfloat16", "step, ms")
bench("step_bf16", "calls", "the same in bfloat16", "ms", 90, "ppo_atari step bfloat16", "step in bfloat16, ms")
for agents, what in (("1", "an update of one agent"), ("64", "64 agents, time per agent")):
    bench(f"anakin_{agents}", "calls", f"PPO on CartPole in one program, {what}", "us", 90, f"anakin {agents}",
          f"{agents} seeds of 4 environments, us")
for agents, envs in ((2048, 4), (1, 4096)):
    bench(f"anakin_{agents}x{envs}", "records", f"PPO on CartPole in one program, {agents} x {envs:,} environments",
          "steps/s", 120, f"anakin {agents}x{envs}", f"{agents} seeds of {envs} environments, us",
          scale=lambda us, envs=envs: envs * 128 * 1e6 / us)

# Flags of XLA that put loops into CUDA graphs.
EVERY = "FUSION,CUBLAS,CUBLASLT,CUSTOM_CALL,CUDNN,COLLECTIVES,CONDITIONAL,WHILE,DYNAMIC_SLICE_FUSION"
GRAPHS = f"--xla_gpu_enable_command_buffer={EVERY} --xla_gpu_graph_min_graph_size=1"
OFF_POLICY = "--env-id HalfCheetah-v4 --learning-starts 1000"
for name, what, flags in (
    ("none", "no CUDA graphs", "--xla_gpu_enable_command_buffer="),
    ("default", "XLA's default", ""),
    ("small", "graphs of one kernel too", "--xla_gpu_graph_min_graph_size=1"),
    ("while", "graphs of all, `while` too", GRAPHS),
    ("unroll", "the same, loops unrolled", GRAPHS + " --xla_gpu_command_buffer_unroll_loops=true"),
    ("double", "loops double-buffered", "--xla_gpu_enable_while_loop_double_buffering=true"),
):
    env = {"env": {"XLA_FLAGS": flags}}
    bench(f"loop_anakin_{name}", "loops", f"PPO on CartPole, an update of one agent: {what}", "us", 60, "anakin 1",
          "1 seeds of 4 environments, us", jax=False, **env)
    bench(f"loop_step_{name}", "loops", f"PPO-Atari gradient step: {what}", "ms", 60, "ppo_atari step", "step, ms",
          jax=False, **env)
    for algo in ("sac", "td3"):
        row(f"loop_{algo}_{name}", "loops", f"{algo.upper()} on HalfCheetah-v4: {what}", "steps/s", 60, "speed",
            f"{algo}_continuous_action {OFF_POLICY}", seconds=10, **env)

# LeanRL's four rows, at its settings.
BEST = "--compile --cudagraphs"
for name, title, algo, flags, by_update in (
    ("ppo_atari", "PPO, Breakout-v5, 8 environments", "ppo_atari_envpool", "--env-id Breakout-v5", "--rollout host"),
    ("ppo_continuous", "PPO, HalfCheetah-v4, 1 environment", "ppo_continuous_action", "--env-id HalfCheetah-v4", None),
    ("sac", "SAC, HalfCheetah-v4", "sac_continuous_action", OFF_POLICY, "--updates-per-call 1"),
    ("td3", "TD3, HalfCheetah-v4", "td3_continuous_action", OFF_POLICY, "--updates-per-call 1"),
):
    script = f"{algo}_torchcompile {flags}"
    row(f"leanrl_{name}", "leanrl", title, "steps/s", 240, "speed", f"{algo} {flags}", f"{script} {BEST}")
    if name == "ppo_atari":
        row(f"leanrl_{name}_bf16", "leanrl", f"{title}, bfloat16", "steps/s", 240, "speed",
            f"{algo} {flags} --compute-dtype bfloat16")
    if by_update:
        row(f"leanrl_{name}_by_update", "leanrl", f"{title}, a call an update", "steps/s", 120, "speed",
            f"{algo} {flags} {by_update}", seconds=20)
    # LeanRL's PPO on Atari does not run without `torch.compile`: it gives Categorical properties without setters.
    row(f"leanrl_{name}_eager", "leanrl", f"{title}, eager", "steps/s", 120, "speed", f"{algo} {flags} --mode eager",
        None if name == "ppo_atari" else script, seconds=20)

# Rollouts.
ROLLOUT = "ppo_atari_envpool --env-id Breakout-v5 --update-epochs 1 --num-minibatches 1"
for envs in (8, 128):
    row(f"rollout_{envs}", "rollouts", f"rollouts of {envs} environments, a gradient step each", "steps/s", 90,
        "speed", f"{ROLLOUT} --num-envs {envs}", seconds=20)
row("atari_128", "rollouts", "PPO, Breakout-v5, 128 environments of 128 steps", "steps/s", 120, "speed",
    "ppo_atari_envpool --env-id Breakout-v5 --num-envs 128 --num-minibatches 8 --compute-dtype bfloat16",
    seconds=20)
row("pqn_128", "rollouts", "PQN, Breakout-v5, 128 environments of 32 steps", "steps/s", 120, "speed",
    "pqn_atari_envpool --env-id Breakout-v5 --num-envs 128 --num-steps 32 --update-epochs 2 --num-minibatches 32",
    seconds=20)

# Time from the start of the process to a score.
PONG = ("ppo_atari_envpool --env-id Pong-v5 --compute-dtype bfloat16 --clip-coef 0.2 --learning-rate 1e-3 "
        "--gae-lambda 0.9 --num-envs 64 --num-minibatches 4 --total-timesteps 4000000")
for seed, cold in ((1, True), (1, False), (2, False), (3, False)):
    row(f"pong_{seed}{'_cold' if cold else ''}", "records",
        f"Pong, mean return 20, seed {seed}, {'nothing' if cold else 'programs'} cached", "s", 240, "score",
        f"{PONG} --seed {seed}", score=20, cold=cold)
for game in ("Asterix", "Breakout", "Freeway", "Seaquest", "SpaceInvaders"):
    row(f"minatar_{game.lower()}", "records", f"MinAtar/{game}-v1, PPO, 10 agents of 10,000,000 steps", "s", 300,
        "whole", f"ppo_anakin --env-id MinAtar/{game}-v1 --num-envs 64 --num-seeds 10 "
        "--total-timesteps 10000000")

# The same machine without its GPU.
POOLS = ("Pong-v5", "HalfCheetah-v4", "Ant-v5")
for env_id in POOLS:
    row(f"pool_{env_id.split('-')[0].lower()}", "cpu", f"pool, {env_id}, 64 environments, 16 threads", "steps/s", 60,
        "pool", f"{env_id} 64 64 16", f"{env_id} 64 64 16", "EnvPool", cpu=True)
MANY = "--num-envs 256 --num-steps 64 --num-minibatches 8 --update-epochs 4"
for env_id in ("HalfCheetah-v5", "Ant-v5"):
    row(f"cpu_{env_id.split('-')[0].lower()}", "cpu", f"PPO, {env_id}, 256 environments", "steps/s", 90, "speed",
        f"ppo_continuous_action --env-id {env_id} {MANY}", seconds=20, cpu=True)
row("cpu_ant_4400", "cpu", "PPO, Ant-v5, mean return 4,400", "s", 320, "score",
    f"ppo_continuous_action --env-id Ant-v5 {MANY} --total-timesteps 50000000", score=4400, cold=False, cpu=True)

# Flags of a dry run, and the arguments of benchmarks.
TINY_ROLLOUT = {"--num-envs": "2", "--num-steps": "8", "--num-minibatches": "2", "--update-epochs": "1"}
TINY_REPLAY = {"--learning-starts": "100", "--batch-size": "8", "--buffer-size": "1000"}
TINY = {
    # In float32, since processors emulate bfloat16.
    "ppo_atari_envpool": TINY_ROLLOUT | {"--compute-dtype": "float32"},
    "pqn_atari_envpool": TINY_ROLLOUT,
    "ppo_continuous_action": TINY_ROLLOUT,
    "ppo_anakin": TINY_ROLLOUT | {"--num-seeds": "2", "--total-timesteps": "64"},
    "sac_continuous_action": TINY_REPLAY,
    "td3_continuous_action": TINY_REPLAY,
    "anakin": ["2x8"],
    **{env_id: ["4", "4", "2"] for env_id in POOLS},
}
TINY |= {f"{algo}_torchcompile": flags for algo, flags in TINY.items()} | {"ppo_atari_envpool_torchcompile": TINY_ROLLOUT}

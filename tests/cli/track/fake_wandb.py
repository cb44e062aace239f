"""A package `wandb` for tests: writes its calls as lines of JSON into FAKE_WANDB_LOG. FAKE_WANDB names a fault."""

import json
import os
import signal
import time

fault = os.environ.get("FAKE_WANDB", "")
if fault == "missing":
    raise ModuleNotFoundError("No module named 'wandb'", name="wandb")


def record(call, **values):
    with open(os.environ["FAKE_WANDB_LOG"], "a") as file:
        print(json.dumps({"call": call, "pid": os.getpid(), **values}), file=file)


class Settings:
    def __init__(self, **values):
        pass


class Video:
    def __init__(self, path, format):
        self.path, self.format = path, format


class Run:
    def __init__(self, name):
        self.name, self.url, self.dir = name, None, "wandb/offline-run-1/files"
        self.rows = 0

    def define_metric(self, name, step_metric=None):
        record("define_metric", name=name, step_metric=step_metric)

    def log(self, row):
        self.rows += 1
        if fault == "crash" and self.rows == 3:
            os.kill(os.getpid(), signal.SIGKILL)
        if fault == "error" and self.rows == 3:
            raise RuntimeError("no space\nleft\x1b[2J")
        if fault == "slow":
            time.sleep(1)
        shown = {key: {"video": value.path} if isinstance(value, Video) else value for key, value in row.items()}
        record("log", row=shown)

    def save(self, path, base_path, policy):
        record("save", path=path, base_path=base_path, policy=policy)

    def finish(self, exit_code):
        record("finish", exit_code=exit_code)


def init(settings, **values):
    record("init", **values)
    if fault == "refused":
        raise ValueError("api_key not configured (no-tty)")
    if fault == "hang":
        time.sleep(1000)
    return Run(values["name"])

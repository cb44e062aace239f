"""Prints the offline run of Weights & Biases in a folder as JSON, read by the real package."""

import glob
import json
import os
import sys

from wandb.proto import wandb_internal_pb2
from wandb.sdk.internal.datastore import DataStore

[path] = glob.glob(os.path.join(sys.argv[1], "wandb", "offline-run-*", "run-*.wandb"))
store = DataStore()
store.open_for_scan(path)
found = {"config": {}, "rows": [], "files": [], "metrics": [], "exit_code": None}
while (data := store.scan_data()) is not None:
    record = wandb_internal_pb2.Record()
    record.ParseFromString(data)
    kind = record.WhichOneof("record_type")
    if kind == "run":
        run = record.run
        found.update(project=run.project, entity=run.entity, group=run.run_group, name=run.display_name)
        found.update(tags=list(run.tags), id=run.run_id)
        found["config"].update({item.key: json.loads(item.value_json) for item in run.config.update})
    elif kind == "history":
        names = [(item.key or ".".join(item.nested_key), json.loads(item.value_json)) for item in record.history.item]
        found["rows"].append(dict(names))
    elif kind == "files":
        found["files"] += [file.path for file in record.files.files]
    elif kind == "metric":
        found["metrics"].append([record.metric.name or record.metric.glob_name, record.metric.step_metric])
    elif kind == "exit":
        found["exit_code"] = record.exit.exit_code
print(json.dumps(found))

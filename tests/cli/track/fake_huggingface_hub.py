"""A package `huggingface_hub` for tests: writes its commits as lines of JSON into FAKE_WANDB_LOG."""

import json
import os
from types import SimpleNamespace

fault = os.environ.get("FAKE_WANDB", "")
if fault == "missing":
    raise ModuleNotFoundError("No module named 'huggingface_hub'", name="huggingface_hub")


class CommitOperationAdd:
    def __init__(self, path_in_repo, path_or_fileobj):
        self.path, self.content = path_in_repo, path_or_fileobj
        assert isinstance(path_or_fileobj, bytes) or os.path.isfile(path_or_fileobj)


class CommitOperationDelete:
    def __init__(self, path_in_repo):
        self.path = path_in_repo


class EvalResult(SimpleNamespace):
    pass


class ModelCardData(SimpleNamespace):
    def to_yaml(self):
        return str(self)


class HfApi:
    def create_repo(self, repo_id, exist_ok):
        if fault == "refused":
            raise ConnectionError("no\nroute")
        return SimpleNamespace(repo_id=repo_id)

    def list_repo_files(self, repo_id):
        return ["README.md", "videos/old.mp4"]

    def create_commit(self, repo_id, operations, commit_message):
        added = [operation for operation in operations if isinstance(operation, CommitOperationAdd)]
        deleted = [operation.path for operation in operations if isinstance(operation, CommitOperationDelete)]
        call = {"call": "create_commit", "repo_id": repo_id, "deleted": deleted}
        call.update(added=[file.path for file in added], card=added[-1].content.decode())
        with open(os.environ["FAKE_WANDB_LOG"], "a") as file:
            print(json.dumps(call), file=file)

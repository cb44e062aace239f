"""Uploads a saved model to the Hugging Face Hub.

Standard input has one line of JSON. Standard output gets a line that begins with `info` or `problem`.
"""

import sys

# Modules in the working directory are not packages that the user installed.
if sys.path and sys.path[0] == "":
    del sys.path[0]

import json
import os
import statistics

replies = os.fdopen(os.dup(1), "w", encoding="utf-8", errors="replace")
os.dup2(2, 1)


def reply(kind, text):
    print(kind, " ".join(str(text).split()), file=replies, flush=True)
    os._exit(0)


def card(hub, model):
    """The page of the model: what it is, how it was made, and its evaluation."""
    name = f"{model['algorithm']} on {model['env_id']}"
    data = {"library_name": "podracer", "tags": [model["env_id"], "reinforcement-learning", "deep-reinforcement-learning"]}
    returns = model["returns"]
    if returns:
        mean, std = statistics.fmean(returns), statistics.pstdev(returns)
        result = hub.EvalResult(
            task_type="reinforcement-learning",
            task_name="reinforcement-learning",
            dataset_type=model["env_id"],
            dataset_name=model["env_id"],
            metric_type="mean_reward",
            metric_name="mean_reward",
            metric_value=f"{mean:.2f} +/- {std:.2f}",
        )
        data.update(model_name=name, eval_results=[result])
    settings = "\n".join(f"{key} = {json.dumps(value)}" for key, value in model["settings"].items())
    return (
        f"---\n{hub.ModelCardData(**data).to_yaml()}\n---\n\n# {name}\n\n"
        f"Trained by Podracer's `{model['algorithm']}`. Evaluate it:\n\n"
        f"```sh\npodracer eval --run {model['files'][0]}\n```\n\n## Settings\n\n```\n{settings}\n```\n"
    )


def main():
    model = json.loads(sys.stdin.buffer.readline())
    try:
        import huggingface_hub as hub
    except ModuleNotFoundError as error:
        if error.name != "huggingface_hub":
            reply("problem", f"import huggingface_hub: {error}")
        reply(
            "problem",
            f"the Python package huggingface_hub is missing; install it with: {sys.executable} -m pip install "
            "huggingface_hub",
        )
    try:
        api = hub.HfApi()
        repo_id = api.create_repo(repo_id=model["repo_id"], exist_ok=True).repo_id
        old = [file for file in api.list_repo_files(repo_id=repo_id) if ".tfevents" in file or file.startswith("videos/")]
        kept = set(model["files"])
        operations = [hub.CommitOperationDelete(path_in_repo=file) for file in old if file not in kept]
        for file in model["files"]:
            path = os.path.join(model["folder"], file)
            operations.append(hub.CommitOperationAdd(path_in_repo=file, path_or_fileobj=path))
        page = card(hub, model).encode()
        operations.append(hub.CommitOperationAdd(path_in_repo="README.md", path_or_fileobj=page))
        api.create_commit(repo_id=repo_id, operations=operations, commit_message=f"Upload {model['name']}")
    except Exception as error:
        reply("problem", f"huggingface_hub: {type(error).__name__}: {error}")
    reply("info", f"the model is at https://huggingface.co/{repo_id}")


main()

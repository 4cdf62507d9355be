#!/usr/bin/env bash
# transformers 5.23.0: a finished Trainer run with a linear schedule, resumed with a larger max_steps, takes its first step with
# learning rate 0; a run that was cut off takes it with the rate of the old schedule. The optimizer's state brings the old rate back,
# and the new schedule is asked only after that step. It matters to whoever trains a memory agent some steps further: a step is spent
# on nothing (its rollouts too), and the rates are those of neither schedule. No warning is given.
set -euo pipefail
place="$(mktemp -d)"
trap 'rm -rf "$place"' EXIT
python3 -m venv "$place/venv"
"$place/venv/bin/pip" install --quiet "transformers==5.23.0" "accelerate==1.15.0" "torch==2.13.0" "numpy==2.4.6"
cd "$place"
"$place/venv/bin/python" - <<'PYTHON'
import torch
import transformers
from torch.optim.optimizer import register_optimizer_step_pre_hook
from transformers import Trainer, TrainingArguments


class Line(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)

    def forward(self, x, labels):
        return {"loss": ((self.layer(x) - labels) ** 2).mean()}


data = [{"x": torch.tensor([float(i)]), "labels": torch.tensor([2.0 * i])} for i in range(8)]
rates = []
register_optimizer_step_pre_hook(lambda optimizer, *_: rates.append(optimizer.param_groups[0]["lr"]))


def run(steps, checkpoint=None):
    rates.clear()
    options = {"learning_rate": 1.0, "lr_scheduler_type": "linear", "save_steps": 1, "report_to": "none", "use_cpu": True}
    arguments = TrainingArguments("out", max_steps=steps, per_device_train_batch_size=1, disable_tqdm=True, **options)
    Trainer(Line(), arguments, train_dataset=data).train(resume_from_checkpoint=checkpoint)
    return [round(rate, 4) for rate in rates]


print("transformers", transformers.__version__)
first, finished, cut = run(4), run(8, "out/checkpoint-4"), run(8, "out/checkpoint-2")
print("4 steps, rates:                ", first)
print("steps 5 to 8 of 8, after 4 of 4:", finished)
print("steps 3 to 8 of 8, after 2 of 4:", cut)
print("a run of 8 from the start has:  ", [1 - k / 8 for k in range(8)])
assert first == [1.0, 0.75, 0.5, 0.25]
assert finished == [0.0, 0.375, 0.25, 0.125], "the first is 0 no more"
assert cut == [0.5, 0.625, 0.5, 0.375, 0.25, 0.125], "the first is that of the old schedule no more"
PYTHON

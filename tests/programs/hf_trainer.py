"""Hugging Face Trainer on a tiny random Llama made here; nothing is downloaded."""

from __future__ import annotations

import argparse

import torch
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainerCallback, TrainingArguments

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=100_000)
parser.add_argument("--seed", type=int, default=0)
parser.add_argument("--accumulate", type=int, default=1)
parser.add_argument("--bf16", action="store_true")
args = parser.parse_args()


class Tokens(torch.utils.data.Dataset):
    def __len__(self) -> int:
        return 512

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        tokens = (torch.arange(16) * (index % 7 + 1)) % 96
        return {"input_ids": tokens, "labels": tokens}


class PrintLosses(TrainerCallback):
    def on_log(self, arguments, state, control, logs=None, **_others):
        if "loss" in logs:
            print(state.global_step, repr(logs["loss"]), flush=True)


model = LlamaForCausalLM(
    LlamaConfig(
        vocab_size=96,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=32,
    )
)
arguments = TrainingArguments(
    output_dir="hf_out", max_steps=args.steps, per_device_train_batch_size=4, logging_steps=1,
    gradient_accumulation_steps=args.accumulate, save_strategy="no", report_to="none", seed=args.seed,
    bf16=args.bf16, use_cpu=not torch.cuda.is_available(), disable_tqdm=True,
)  # fmt: skip
Trainer(model=model, args=arguments, train_dataset=Tokens(), callbacks=[PrintLosses()]).train()

# pyright: reportMissingImports=false
"""Writes a tiny random Llama whose greedy output runs in cycles of 8: n-gram drafts are right. The
model has a chat template, so that clients can chat with it.

usage, in vLLM's environment: python -m jaxserve_vllm.cyclic_model FOLDER [--config FILE]

The file is a config.json with other sizes; its vocab_size must be at least that of the tokenizer,
and a multiple of 8.
"""

import argparse
import json
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

VOCABULARY, CYCLE = 512, 8
SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 8192,
}

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("folder", type=Path)
parser.add_argument("--config", type=Path)
asked = parser.parse_args()
folder = asked.folder
sizes = SIZES if asked.config is None else SIZES | json.loads(asked.config.read_text())
width, entries = sizes["hidden_size"], sizes["vocab_size"]

tokenizer = Tokenizer(models.BPE())
tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
tokenizer.decoder = decoders.ByteLevel()
trainer = trainers.BpeTrainer(
    vocab_size=VOCABULARY,
    special_tokens=["<|bos|>", "<|eos|>"],
    initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
)
tokenizer.train_from_iterator(["queue latency token batch cache"] * 50, trainer)
CHAT = (
    "{% for message in messages %}{{ message['role'] }}: {{ message['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)
PreTrainedTokenizerFast(
    tokenizer_object=tokenizer, bos_token="<|bos|>", eos_token="<|eos|>", chat_template=CHAT
).save_pretrained(folder)

torch.manual_seed(0)
model = LlamaForCausalLM(
    LlamaConfig(**sizes | {"bos_token_id": 0, "eos_token_id": 1, "tie_word_embeddings": False})
)
with torch.no_grad():
    # Nothing is added to a token's embedding, and the head has it point at the next of its cycle.
    for layer in model.model.layers:
        layer.self_attn.o_proj.weight.zero_()
        layer.mlp.down_proj.weight.zero_()
    embeddings = torch.nn.functional.normalize(torch.randn(entries, width), dim=1)
    model.model.embed_tokens.weight.copy_(embeddings)
    for token in range(entries):
        following = token // CYCLE * CYCLE + (token + 1) % CYCLE
        model.lm_head.weight[following] = embeddings[token] * 3 / width**0.5
model.generation_config.eos_token_id = None
model.to(torch.bfloat16).save_pretrained(folder)

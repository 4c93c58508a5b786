"""Writes a tiny language model that operates a server: it thinks in random words, then sets a knob.

Its weights are random but for what keeps it to the form of a tool call, so that engines and
trainers can be tried on it without a download. Prints where it is and how many parameters it has.
Needs torch and transformers.

    python examples/training/tiny_model.py tiny
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

CALL = '{"name": "step", "arguments": {"batch_cap": '
CAPS = ("8", "24", "48", "96", "192", "384")
WORDS = ("queue,", "burst,", "draft,", "cache,", "latency,", "batch,", "slots,", "prefill,")
NEXT = {
    "<think>": WORDS,
    **dict.fromkeys(WORDS, (*WORDS, "</think>")),
    "</think>": ("<tool_call>",),
    "<tool_call>": (CALL,),
    CALL: CAPS,
    **dict.fromkeys(CAPS, ("}}",)),
    "}}": ("</tool_call>",),
    "</tool_call>": ("<|end|>",),
    "Done.": ("<|end|>",),
    "<|over|>": (),
}
"""Tokens that may follow a token, each about as likely as the others. Where the chat template says
by ``<|over|>`` that the episode is over, "Done." follows on the thoughts."""
ROLES = ("<|system|>", "<|user|>", "<|assistant|>", "<|tool|>", "<|end|>")
WIDTH, SURE = 64, 20.0


def main() -> None:
    """Writes tokenizer, chat template and weights."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", help="where it is written")
    folder = parser.parse_args().folder
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    core = Tokenizer(models.BPE({letter: id for id, letter in enumerate(letters)}, []))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    core.add_tokens([AddedToken(text) for text in (*NEXT, *ROLES)])
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=core,
        eos_token="<|end|>",
        pad_token="<|end|>",
        padding_side="left",
        chat_template=Path(__file__).with_suffix(".jinja").read_text(encoding="utf-8"),
    )
    tokenizer.save_pretrained(folder)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=WIDTH,
        intermediate_size=2 * WIDTH,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=8192,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        dtype="float32",
    )
    model = LlamaForCausalLM(config)
    id_of = tokenizer.convert_tokens_to_ids
    rows = [id_of(text) for text in NEXT]
    with torch.no_grad():
        # What these tokens have of their own in the residual stream is orthogonal to all others.
        own = torch.linalg.qr(torch.randn(WIDTH, WIDTH))[0][: len(rows) + 1]
        model.model.embed_tokens.weight -= model.model.embed_tokens.weight @ own.T @ own
        model.model.embed_tokens.weight[rows] = own[:-1]
        for direction, following in zip(own, NEXT.values(), strict=False):
            model.lm_head.weight[[id_of(text) for text in following]] += SURE / 8 * direction
        # A head by which the end of the thoughts looks for the token that says it is over.
        names = list(NEXT)
        attention, low = model.model.layers[0].self_attn, config.head_dim // 2 - 1
        attention.q_proj.weight[low] = 2 * own[names.index("</think>")]
        attention.k_proj.weight[low] = attention.v_proj.weight[0] = own[names.index("<|over|>")]
        attention.o_proj.weight[:, 0] = own[-1]
        model.lm_head.weight[id_of("Done.")] += SURE / 8 * own[-1]
    model.save_pretrained(folder)
    print(f"{folder}: {model.num_parameters():,} parameters")


if __name__ == "__main__":
    main()

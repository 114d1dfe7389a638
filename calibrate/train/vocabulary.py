"""A byte-level tokenizer learnt from the text, which transformers loads from the model's folder."""

from __future__ import annotations

from typing import Any


def learn_vocabulary(text: str, num_tokens: int) -> Any:  # noqa: ANN401 - a tokenizer of transformers
    """Byte-pair encoding over bytes: any text has tokens, and the same text gives the same vocabulary."""
    import tokenizers
    import transformers
    from tokenizers import decoders, models, pre_tokenizers, trainers

    made: Any = tokenizers
    tokenizer = made.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=num_tokens, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator([text], trainer)
    auto: Any = transformers
    return auto.PreTrainedTokenizerFast(tokenizer_object=tokenizer)

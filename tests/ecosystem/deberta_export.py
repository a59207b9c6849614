"""Exports a folder of DeBERTa with an older release of transformers, as its users did: by torchscript, opset 14.

    python -m tests.ecosystem.deberta_export PACKAGES FOLDER FILE

takes transformers from the folder PACKAGES, and prints its version.
"""

from __future__ import annotations

import sys

if __name__ == "__main__":
    packages, folder, file = sys.argv[1:]
    sys.path.insert(0, packages)
    import torch
    import transformers

    model = transformers.AutoModelForSequenceClassification.from_pretrained(folder).eval()
    ids = torch.randint(5, model.config.vocab_size, (2, 7))
    mask = torch.tensor([[1] * 7, [1] * 5 + [0] * 2])

    class Outputs(torch.nn.Module):
        """The logits, and each token's vector."""

        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            made = self.model(input_ids=input_ids, attention_mask=attention_mask, output_hidden_states=True)
            return made.logits, made.hidden_states[-1]

    axes = {0: "batch", 1: "sequence"}
    torch.onnx.export(
        Outputs(),
        (ids, mask),
        file,
        input_names=["input_ids", "attention_mask"],
        output_names=["logits", "vectors"],
        dynamic_axes={"input_ids": axes, "attention_mask": axes, "vectors": axes, "logits": {0: "batch"}},
        opset_version=14,
        dynamo=False,
    )
    print(transformers.__version__)

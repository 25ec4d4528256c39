"""What of a replica can be reached through the front: what is listed here, and nothing else.

A replica's own administration (vLLM's /v1/osd, /collective_rpc, /pause, /v1/load_lora_adapter, /server_info, …) is not
listed, so that neither it nor what later releases add is open to whoever may ask for text.
"""

from __future__ import annotations

READ_TEXT = ("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages")
"""Routes that generate: their prompt is routed by, and they may stream."""
OTHERS = (
    "/v1/chat/completions/batch", "/v1/messages/count_tokens", "/v1/embeddings", "/v2/embed", "/pooling", "/classify",
    "/score", "/v1/score", "/rerank", "/v1/rerank", "/v2/rerank", "/generative_scoring", "/inference/v1/generate",
    "/tokenize", "/detokenize",
)  # fmt: skip
"""What vLLM offers beyond: any replica answers."""
SCOPES = dict.fromkeys(("/v1/", *(path for path in OTHERS if not path.startswith("/v1/"))), "infer") | {
    "/metrics": "metrics"
}
"""Beginnings of paths, and the scope that a key needs for them."""

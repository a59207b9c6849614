"""A peer for load_test.py: sentence-transformers behind FastAPI, as one writes it in a few lines.

    python tests/serving/peer_fastapi.py MODEL_FOLDER PORT

Its packages (sentence-transformers, fastapi, uvicorn) belong into an environment of their own.
"""

import base64
import sys

import fastapi
import uvicorn
from sentence_transformers import SentenceTransformer

app = fastapi.FastAPI()
model = SentenceTransformer(sys.argv[1], device="cpu")


@app.post("/v1/embeddings")
def embeddings(body: dict) -> dict:  # no coroutine: FastAPI runs it in a thread
    given = body["input"] if isinstance(body["input"], list) else [body["input"]]
    vectors = model.encode(given, show_progress_bar=False)
    encoded = body.get("encoding_format") == "base64"
    rows = [base64.b64encode(v.astype("<f4").tobytes()).decode() if encoded else v.tolist() for v in vectors]
    return {"data": [{"index": index, "embedding": row} for index, row in enumerate(rows)]}


if __name__ == "__main__":
    uvicorn.run(app, port=int(sys.argv[2]), log_level="error")

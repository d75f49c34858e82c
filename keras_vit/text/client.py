"""A client of TensorFlow Serving for image-text models. Shapes: B images, N texts, E embedding."""

import base64
import json
import os
import pathlib
import urllib.error
import urllib.request
from collections.abc import Sequence

import numpy as np

from keras_vit.text.tokenizers import Tokenizer


class Client:
    """Sends image files and texts to a server of an image-text model, and tokenizes the texts.

    The server runs a SavedModel of `keras_vit.export_image_text_model`. Each method calls one of its signatures, and
    returns the outputs as {name: array}.

    Args:
        address: Address of the model, such as `"http://localhost:8501/v1/models/clip"`, or of one of its versions or
            labels, such as `"http://localhost:8501/v1/models/clip/labels/stable"`.
        tokenizer: `keras_vit.text.tokenizers.Tokenizer`, or the folder of the exported version,
            which contains its file.
        timeout: Time in seconds after which a request fails.

    Raises:
        FileNotFoundError: If the folder contains no `keras_vit.json`, or no tokenizer.
        ConnectionError: By the methods, if the server cannot be reached.
        ValueError: By the methods, if the server refuses a request, or if there are no images or texts.

    Example:

    >>> from keras_vit.text.client import Client
    >>> client = Client("http://localhost:8501/v1/models/clip", "models/clip/1")  # doctest: +SKIP
    >>> client.similarity([open("photo.jpg", "rb").read()], ["a cat", "a dog"])["probabilities"]  # doctest: +SKIP
    """

    def __init__(self, address: str, tokenizer: str | os.PathLike | Tokenizer, timeout: float = 30.0) -> None:
        self.address, self.timeout = address.rstrip("/"), timeout
        self.tokenizer = tokenizer if isinstance(tokenizer, Tokenizer) else _read_tokenizer(pathlib.Path(tokenizer))

    def image(self, files: Sequence[bytes]) -> dict[str, np.ndarray]:
        """Returns `embedding`, unit vectors (B, E), and `valid` (B,), of the contents of B image files."""
        return self._request("image", image_bytes=_encoded(files))

    def text(self, texts: str | Sequence[str]) -> dict[str, np.ndarray]:
        """Returns `embedding`, unit vectors (N, E), and `valid` (N,), of N texts."""
        return self._request("text", token_ids=self._token_ids(texts))

    def similarity(self, files: Sequence[bytes], texts: str | Sequence[str]) -> dict[str, np.ndarray]:
        """Returns `logits` and `probabilities` (B, N), and `valid` (B,), of B image files and N texts.

        The server computes the texts for each image. For many images, compare the embeddings of `image` and `text`.
        """
        ids = self._token_ids(texts)
        return self._request("similarity", image_bytes=_encoded(files), token_ids=[ids] * len(files))

    def _token_ids(self, texts):
        ids = self.tokenizer(texts).tolist()
        if not ids:
            raise ValueError("Pass at least one text. Received: none")
        return ids

    def _request(self, signature, **inputs):
        body = json.dumps({"signature_name": signature, "inputs": inputs}).encode()
        try:
            with urllib.request.urlopen(f"{self.address}:predict", body, self.timeout) as response:
                outputs = json.load(response)["outputs"]
        except urllib.error.HTTPError as error:
            raise ValueError(f"{self.address} answers with status {error.code}: {error.read().decode()}") from error
        except (urllib.error.URLError, TimeoutError) as error:
            reason = getattr(error, "reason", error)
            raise ConnectionError(f"{self.address} cannot be reached: {reason}. Does the server run?") from error
        return {name: np.asarray(rows, bool if name == "valid" else "float32") for name, rows in outputs.items()}


def _encoded(files):
    if isinstance(files, bytes) or not all(isinstance(file, bytes) for file in files):
        raise TypeError("Pass a list with the contents of image files, as bytes.")
    if not files:
        raise ValueError("Pass at least one image. Received: none")
    return [{"b64": base64.b64encode(file).decode()} for file in files]


def _read_tokenizer(folder):
    file = folder / "keras_vit.json"
    if not file.is_file():
        raise FileNotFoundError(f"{folder} is not the folder of an exported version, such as models/clip/1.")
    facts = json.loads(file.read_text()).get("tokenizer")
    if facts is None:
        raise FileNotFoundError(f"The model in {folder} is no image-text model with a tokenizer. Pass a Tokenizer.")
    return Tokenizer.from_file(facts["kind"], folder / "assets" / facts["file"], facts["context_length"])

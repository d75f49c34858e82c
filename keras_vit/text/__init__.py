"""Image-text models: tokenizers, prompts, and the pair of an image encoder and a text encoder."""

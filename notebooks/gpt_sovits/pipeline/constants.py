"""What the pipeline, the conversion and the networks in PyTorch must agree on."""

SETTINGS_FILE, VOCABULARY_FILE = "config.json", "tokenizer.json"  # of an IR folder; BERT's tokens are in the second
VERSIONS = {"v1": 322, "v2": 732, "v2Pro": 732}  # phonemes that each version knows: the first of symbols.json
SPEAKER_SIZE = 20_480  # numbers in a speaker embedding by ERes2NetV2, which v2Pro takes
NOISE_SCALE = 0.5  # factor on the normal noise in the latents
HUBERT_RATE_HZ = 16_000  # of HuBERT's input
SILENCE_SAMPLES = 9600  # after HuBERT's input: the authors meant 0.3 s, but of 32 kHz

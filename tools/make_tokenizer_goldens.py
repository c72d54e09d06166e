#!/usr/bin/env python3
"""Writes tests/golden/tokenizers/: small tokenizers of every kind, and the ids that the reference libraries give for many texts.

Needs tokenizers, sentencepiece and gguf from PyPI (pip install tokenizers sentencepiece gguf jinja2), and SmolLM2's GGUF file
(scripts/fetch-model). No test runs this: the outputs are committed, and a test compares them with what Penstock gives.

    python3 tools/make_tokenizer_goldens.py [--only NAME] [--train] [--model FILE.gguf] [--templates FOLDER]

FOLDER holds chat templates as NAME--EDITION.jinja, taken out of the models' own tokenizer_config.json: they are not committed,
only what Jinja makes of them (tests/golden/chat/renderings.json). Penstock prints the fingerprint of a template it does not know.
"""
import argparse
import base64
import hashlib
import importlib.metadata
import json
import os
import pathlib
import subprocess
import tempfile

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

ROOT = pathlib.Path(__file__).resolve().parent.parent
OUT = ROOT / "tests" / "golden" / "tokenizers"

CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
TAIL = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
LLAMA3 = CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|" + TAIL
QWEN2 = CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}|" + TAIL
UPPER, LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
LEAD = r"[^\r\n\p{L}\p{N}]?"
TAIL_SLASH = r" ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
TEKKEN = LEAD + UPPER + "*" + LOWER + "+|" + LEAD + UPPER + "+" + LOWER + r"*|\p{N}|" + TAIL_SLASH
O200K = LEAD + UPPER + "*" + LOWER + "+" + CONTRACTIONS + "?|" + LEAD + UPPER + "+" + LOWER + "*" + CONTRACTIONS + r"?|\p{N}{1,3}|" + TAIL_SLASH
DEEPSEEK3 = [r"\p{N}{1,3}", "[一-龥぀-ゟ゠-ヿ]+",
             r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"""]

# What the small tokenizers are trained on.
CORPUS = [
    "The water runs through the pipe and turns the wheel; the wheel drives the pump, and the pump lifts the water again.",
    "Eight stages stand in a row. The first stage hands its work to the second one, the second to the third, and so on.",
    "When the third stage waits for the second, nobody gains: the others wait as well, and the whole row stands still.",
    "def forward(stage, batch):\n    for layer in stage.layers:\n        batch = layer(batch)\n    return batch\n",
    "for (size_t i = 0; i < n; ++i) {\n\tsum += weights[i] * values[i];\n}\n",
    "In 1984 and 2024 there were 12345 workers, 678 of them new; 3.14159 and 2.71828 are numbers, 10% is a share.",
    "I'm sure we'll see that it's done, they've said, but she'd rather wait. DON'T SHOUT, IT'S LATE.",
    "Der Fluß trägt größere Schiffe über die Brücke; am Abend wird es kühl. Où va l'eau après le château? Mañana, señor.",
    "Вода течёт по трубе и вращает колесо. Το νερό τρέχει μέσα στον σωλήνα.",
    "水は管を通って車を回す。水流过管道，推动轮子。물이 관을 지나 바퀴를 돌린다.",
    "المياه تجري في الأنبوب. המים זורמים בצינור. पानी नली से बहता है।",
    "Emoji: \U0001F600\U0001F680 and a heart \u2764\ufe0f, arrows \u2192 \u21d2, maths \u2200x\u2203y.",
    "  two spaces,   three,    four;\ttab\t\ttabs\n\n\nthree line ends\r\nand a Windows one.",
] * 4

# What is tokenized.
TEXTS = [
    "", " ", "  ", "   ", "\n", "\n\n", "\t", " \n ", "\r\n", "a", " a", "a ", "  a", "a  b", "Hello world", "hello  world  ",
    "The water runs through the pipe.", "the wheel's turn, isn't it? We'll see, I'd say; they're HERE, IT'S ME, y'all'd've",
    "'S 'T 'LL 'ſ don’t", "1", "12", "123", "1234", "1234567890", "3.14159e-10", "a1b22c333d4444", "x=1;y=22;", "٣٤٥ ²³¹ ⅷ ½ 一二三",
    "def f(x):\n    return x**2  # square\n\n\nclass A:\n\tpass\n", "for(i=0;i<10;++i){a[i]+=b[i]*c[i];}", "<html><body class=\"x\">&nbsp;</body></html>",
    "SELECT * FROM t WHERE a='b' -- c", "path/to/file.txt C:\\Users\\me http://a.b/c?d=e&f=g#h", "snake_case camelCase PascalCase SCREAMING_CASE kebab-case",
    "größere Flüße, Ärger; œuvre ça Noël naïve", "e\u0301 n\u0303 a\u0300\u0301 \u0301lone", "ﬁ ﬂ Å Å ﷺ ① ㎏ ｆｕｌｌ", "İstanbul ıǅ ẞß ΣΑΣ",
    "Вода течёт по трубе, а колесо вращается.", "Το νερό τρέχει μέσα.", "水は管を通って車を回す。", "水流过管道，推动轮子。ABC混合123文字", "물이 관을 지나 바퀴를 돌린다", "각 각",
    "המים זורמים בצינור", "المياه تجري في الأنبوب ١٢٣", "पानी नली से बहता है।", "น้ำไหลผ่านท่อ", "ជំរាបសួរ", "မင်္ဂလာပါ", "ᠮᠣᠩᠭᠣᠯ ᚠᚢᚦ", "𝔘𝔫𝔦𝔠𝔬𝔡𝔢 𐍈𐍉 𠜎𠜱",
    "\U0001F600", "\U0001F468\u200D\U0001F469\u200D\U0001F467\u200D\U0001F466 family", "\U0001F1E9\U0001F1EA\U0001F1EB\U0001F1F7", "\U0001F44D\U0001F3FD\u2764\ufe0f\u200d\U0001F525", "a\u200bb\u200cc\u200dd\ufeffe",
    "a\u00a0b\u2003c\u3000d\u180ee\u2028f\u0085g\u202fh", "\u2581a \u2581\u2581b", "\x00\x01\x04\x7f\x80\u009f", "tab\tin\t\tthe  middle\x0b\x0c end",
    "line\n\n  indented\n \n\t\n   ", "   \n\n   x", "x   \n\n", "...!!!???,,,;;; --- ___ ~~~ ```", "!@#$%^&*()_+-=[]{}|;':\",./<>?`~", "“quoted” ‘single’ — dash … dots • bullet ¿qué? ¡sí!",
    "€100 £5 ¥7 ©®™ °C ±5 ×÷ ≈≠≤≥ ∑∫√", "a" * 300, "A" * 50 + "b" * 50, " " * 200, " " * 199 + "x", "\n" * 70, "ab" * 120, "the " * 60, "1" * 100, "水" * 60, "é" * 40, "\U0001F600" * 20, "!" * 64, "-" * 80,
    " \t" * 40, "<0x41> <0x0A> <unk>", "<s>hello</s>", "hello <s> there</s> you", "<|im_start|>user\nhi<|im_end|>\n", "the <mask> here <mask>", "word<mask>word", "<tool>x<tool> y", "WOW wow wowed", "<|im_start|>\t\tuser", "<|im_start|> \t\t\n <mask>", "wow▁wow</s>wow", "पीी ᠮीe\u0940", "\U0010FFFF\uE000\uFFFD",
]
# Bytes that are not UTF-8, with the rule of tokenizer.h.
BYTES = [b"\xff", b"a\xffb", b"\xc3", b"ab \xe2\x82", b"\xe2\x82\xac\xe2\x82", b"\xf0\x9f\x98\x80\xf0\x9f\x98", b"\x80\x80 x", b"\xed\xa0\x80", b"\xc0\xaf", b"\xf4\x90\x80\x80 z", b"the \xfe\xff wheel", b" \xff ", b"\xf1\xf2"]


def versions():
    return {name: importlib.metadata.version(name) for name in ("tokenizers", "sentencepiece", "gguf")}


def bpe_trainer(size, special, byte_level):
    alphabet = pre_tokenizers.ByteLevel.alphabet() if byte_level else []
    return trainers.BpeTrainer(vocab_size=size, special_tokens=special, initial_alphabet=alphabet, show_progress=False)


def byte_level(pre, size=400, special=("<s>", "</s>"), normalizer=None, **model):
    tok = Tokenizer(models.BPE(**model))
    tok.pre_tokenizer = pre
    if normalizer is not None:
        tok.normalizer = normalizer
    tok.decoder = decoders.ByteLevel()
    tok.train_from_iterator(CORPUS, bpe_trainer(size, list(special), True))
    return tok


def splits(*patterns):
    parts = [pre_tokenizers.Split(Regex(p), "isolated") for p in patterns]
    return pre_tokenizers.Sequence(parts + [pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


def template(bos="<s>", eos=None, tok=None):
    parts = f"{bos} $A" + (f" {eos}" if eos else "")
    names = [bos] + ([eos] if eos else [])
    return processors.TemplateProcessing(single=parts, pair=f"{parts} $B", special_tokens=[(n, tok.token_to_id(n)) for n in names])


def with_added(tok):
    """Added tokens of every kind."""
    tok.add_special_tokens([AddedToken("<mask>", lstrip=True, normalized=False), AddedToken("<|im_start|>", rstrip=True, normalized=False), AddedToken("<|im_end|>", normalized=False)])
    tok.add_tokens([AddedToken("wow", single_word=True, normalized=True), AddedToken("<tool>", normalized=False), AddedToken("\t\t", normalized=False)])
    return tok


def with_byte_tokens(tok, keep=lambda b: True):
    """The same BPE tokenizer with <unk>, <s>, </s> and the byte tokens in front, and byte fallback."""
    data = json.loads(tok.to_str())
    names = ["<unk>", "<s>", "</s>"] + [f"<0x{b:02X}>" for b in range(256) if keep(b)]
    learnt = [t for t, _ in sorted(data["model"]["vocab"].items(), key=lambda p: p[1]) if t not in names]
    data["model"]["vocab"] = {t: i for i, t in enumerate(names + learnt)}
    data["model"].update(byte_fallback=True, unk_token="<unk>", fuse_unk=True)
    data["added_tokens"] = [dict(id=i, content=t, single_word=False, lstrip=False, rstrip=False, normalized=False, special=True) for i, t in enumerate(names[:3])]
    return Tokenizer.from_str(json.dumps(data))


def spm_decoder(strip=True):
    return decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()] + ([decoders.Strip(" ", 1, 0)] if strip else []))


def characters_bpe(pre=None, normalizer=None, size=330, special=("<unk>", "<s>", "</s>"), **model):
    tok = Tokenizer(models.BPE(**model))
    if pre is not None:
        tok.pre_tokenizer = pre
    if normalizer is not None:
        tok.normalizer = normalizer
    latin = [line for line in CORPUS if line.isascii()]
    tok.train_from_iterator(latin, bpe_trainer(size, list(special), False))
    return tok


def llama2():
    spaces = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    trained = characters_bpe(pre_tokenizers.Metaspace(prepend_scheme="always"))
    tok = with_byte_tokens(trained)
    tok.pre_tokenizer = None
    data = json.loads(tok.to_str())
    data["pre_tokenizer"] = None
    tok = Tokenizer.from_str(json.dumps(data))
    tok.normalizer = spaces
    tok.decoder = spm_decoder()
    tok.post_processor = template("<s>", None, tok)
    return with_added(tok)


def metaspace(scheme, split, added):
    tok = with_byte_tokens(characters_bpe(pre_tokenizers.Metaspace(prepend_scheme=scheme, split=split)), keep=lambda b: b != 0xFF)
    tok.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme, split=split)
    tok.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace(prepend_scheme=scheme, split=split)]) if scheme == "always" else spm_decoder()
    return with_added(tok) if added else tok


def gemma():
    trained = characters_bpe(pre_tokenizers.Metaspace(prepend_scheme="never"))
    tok = with_byte_tokens(trained)
    tok.normalizer = normalizers.Replace(" ", "▁")
    tok.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    tok.decoder = spm_decoder(strip=False)
    tok.post_processor = template("<s>", None, tok)
    return tok


def unigram(byte_fallback, normalizer=None, pre=None):
    tok = Tokenizer(models.Unigram())
    tok.pre_tokenizer = pre or pre_tokenizers.Metaspace(prepend_scheme="always")
    latin = [line for line in CORPUS if line.isascii()]
    special = ["<unk>", "<s>", "</s>"] + ([f"<0x{b:02X}>" for b in range(256)] if byte_fallback else [])
    tok.train_from_iterator(latin, trainers.UnigramTrainer(vocab_size=520 if byte_fallback else 220, special_tokens=special, unk_token="<unk>", show_progress=False))
    data = json.loads(tok.to_str())
    data["model"]["byte_fallback"] = byte_fallback
    data["added_tokens"] = [t for t in data["added_tokens"] if not t["content"].startswith("<0x")]
    for entry in data["model"]["vocab"]:
        entry[1] = round(entry[1], 6)
    tok = Tokenizer.from_str(json.dumps(data))
    if normalizer is not None:
        tok.normalizer = normalizer
    tok.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace()]) if byte_fallback else decoders.Metaspace()
    tok.post_processor = template("<s>", "</s>", tok)
    return tok


def small_charsmap():
    """A precompiled character map of a few rules, made by sentencepiece."""
    import sentencepiece
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        rules = {"ﬁ": "fi", "①": "1", "\u212b": "\u00c5", "\u3000": " ", "é": "e'", "e\u0301": "E", "水": "mizu", "\u200b": ""}
        rows = ["\t".join([" ".join(f"{ord(c):X}" for c in a), " ".join(f"{ord(c):X}" for c in b)]) for a, b in rules.items()]
        (folder / "rules.tsv").write_text("\n".join(rows) + "\n")
        (folder / "text").write_text("\n".join(CORPUS))
        sentencepiece.SentencePieceTrainer.train(input=str(folder / "text"), model_prefix=str(folder / "m"), vocab_size=200, model_type="bpe", normalization_rule_tsv=str(folder / "rules.tsv"), minloglevel=2, hard_vocab_limit=False)
        model = spm_model(folder / "m.model")
        return model.normalizer_spec.precompiled_charsmap


def spm_model(path):
    from sentencepiece import sentencepiece_model_pb2
    proto = sentencepiece_model_pb2.ModelProto()
    proto.ParseFromString(pathlib.Path(path).read_bytes())
    return proto


def small_tokenizers():
    """name -> a function that makes it."""
    gpt2 = pre_tokenizers.ByteLevel(add_prefix_space=False)
    behaviors = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(r"\d"), "merged_with_next"), pre_tokenizers.Split(",", "merged_with_previous"), pre_tokenizers.Split("-", "contiguous"), pre_tokenizers.Split(Regex("[a-z ]+|[^a-z ]+"), "removed", invert=True), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    return {
        "gpt2": lambda: with_added(byte_level(gpt2)),
        "gpt2_prefix": lambda: byte_level(pre_tokenizers.ByteLevel(add_prefix_space=True)),
        "smollm": lambda: byte_level(pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), gpt2])),
        "digits": lambda: byte_level(pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=False), pre_tokenizers.Punctuation(), gpt2])),
        "llama3": lambda: llama3(),
        "qwen2": lambda: with_added(byte_level(splits(QWEN2), normalizer=normalizers.NFC())),
        "tekken": lambda: byte_level(splits(TEKKEN), ignore_merges=True),
        "o200k": lambda: byte_level(splits(O200K)),
        "deepseek3": lambda: byte_level(splits(*DEEPSEEK3)),
        "behaviors": lambda: byte_level(behaviors),
        "llama2": llama2,
        "metaspace_first": lambda: metaspace("first", False, True),
        "metaspace_always": lambda: metaspace("always", True, True),
        "metaspace_never": lambda: metaspace("never", True, False),
        "gemma": gemma,
        "unigram_bytes": lambda: unigram(True, normalizers.Sequence([normalizers.NFKC(), normalizers.Strip(), normalizers.Lowercase()])),
        "unigram_unk": lambda: unigram(False, normalizers.Sequence([normalizers.NFD(), normalizers.StripAccents(), normalizers.Replace(Regex(" {2,}"), " ")])),
        "unigram_charsmap": lambda: unigram(False, normalizers.Precompiled(small_charsmap())),
        "words": lambda: characters_bpe(pre_tokenizers.Whitespace(), unk_token="<unk>"),
        "words_fused": lambda: characters_bpe(pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Punctuation("merged_with_previous")]), normalizers.Sequence([normalizers.NFKD(), normalizers.Lowercase()]), unk_token="<unk>", fuse_unk=True),
    }


def llama3():
    tok = byte_level(splits(LLAMA3), ignore_merges=True)
    tok.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=False), template("<s>", None, tok)])
    return tok


def write(path, value):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value, ensure_ascii=False, separators=(",", ":")) + "\n")


def run_lengths(ids):
    """[id, id, [id, count], ...]: runs of more than 8 become pairs."""
    out, i = [], 0
    while i < len(ids):
        j = i
        while j < len(ids) and ids[j] == ids[i]:
            j += 1
        out += [[ids[i], j - i]] if j - i > 8 else ids[i:j]
        i = j
    return out


def goldens(tok, ids_of_bytes=None):
    """Ids of TEXTS without and (where they differ) with special tokens, and the decoded texts where they differ from the text."""
    rows = []
    for text in TEXTS:
        ids = tok.encode(text, add_special_tokens=False).ids
        special = tok.encode(text, add_special_tokens=True).ids
        decoded = tok.decode(ids, skip_special_tokens=False)
        row = {"ids": run_lengths(ids)}
        if special != ids:
            row["special"] = run_lengths(special)
        if decoded != text:
            row["decoded"] = decoded
        rows.append(row)
    return rows


def byte_rows(tok):
    """Ids of BYTES for byte-level tokenizers: valid stretches by the reference, each other byte by its own token."""
    letters = byte_letters()
    rows = []
    for raw in BYTES:
        ids = []
        for kind, part in stretches(raw):
            if kind == "text":
                ids += tok.encode(part.decode(), add_special_tokens=False).ids
            else:
                token = tok.token_to_id(letters[part[0]])
                ids += [] if token is None else [token]
        rows.append({"hex": raw.hex(), "ids": ids})
    return rows


def stretches(raw):
    """("text", valid bytes) and ("byte", one byte that is in no well-formed sequence), in order."""
    at, out = 0, []
    while at < len(raw):
        try:
            raw[at:].decode()
            out.append(("text", raw[at:]))
            break
        except UnicodeDecodeError as error:
            if error.start:
                out.append(("text", raw[at:at + error.start]))
            at += error.start
            out.append(("byte", raw[at:at + 1]))
            at += 1
    return out


def byte_letters():
    keep = [*range(33, 127), *range(161, 173), *range(174, 256)]
    letters, extra = {b: chr(b) for b in keep}, 0
    for b in range(256):
        if b not in letters:
            letters[b] = chr(256 + extra)
            extra += 1
    return letters


def smollm2(path):
    """SmolLM2's tokenizer from the vocabulary and merges of its GGUF file, as a Hugging Face tokenizer."""
    from gguf import GGUFReader
    fields = GGUFReader(path).fields
    tokens, merges = fields["tokenizer.ggml.tokens"].contents(), fields["tokenizer.ggml.merges"].contents()
    types = fields["tokenizer.ggml.token_type"].contents()
    tok = Tokenizer(models.BPE(vocab={t: i for i, t in enumerate(tokens)}, merges=[tuple(m.split(" ")) for m in merges]))
    tok.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)])
    tok.decoder = decoders.ByteLevel()
    tok.add_special_tokens([AddedToken(t, normalized=False) for t, kind in zip(tokens, types) if kind == 3])
    return tok


def sentencepiece_case(kind):
    """A small sentencepiece model as a GGUF vocabulary, and the ids that sentencepiece gives."""
    import sentencepiece
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        (folder / "text").write_text("\n".join(CORPUS))
        unigram = kind == "t5"
        sentencepiece.SentencePieceTrainer.train(
            input=str(folder / "text"), model_prefix=str(folder / "m"), vocab_size=700, model_type="unigram" if unigram else "bpe", byte_fallback=True, split_digits=True, normalization_rule_name="identity",
            remove_extra_whitespaces=unigram, add_dummy_prefix=True, allow_whitespace_only_pieces=True, character_coverage=0.98, minloglevel=2, hard_vocab_limit=False)
        proto = spm_model(folder / "m.model")
        engine = sentencepiece.SentencePieceProcessor(model_file=str(folder / "m.model"))
        vocabulary = {"model": kind, "tokens": [p.piece for p in proto.pieces], "scores": [round(p.score, 5) for p in proto.pieces],
                      "token_types": [{1: 1, 2: 2, 3: 3, 4: 4, 5: 5, 6: 6}[p.type] for p in proto.pieces], "bos_id": 1, "eos_id": 2, "unknown_id": 0, "remove_extra_whitespaces": unigram}
        # Texts between special tokens are the caller's business there.
        texts = [t for t in TEXTS if "<s>" not in t and "<unk>" not in t and "\x00" not in t and "▁" not in t]
        rows = [{"text": t, "ids": run_lengths(engine.encode(t))} for t in texts]
    write(OUT / "sentencepiece" / f"{kind}.json", {"generator": "tools/make_tokenizer_goldens.py", "versions": versions(), "vocabulary": vocabulary, "rows": rows})


# What the chat templates render.
def turns(*pairs):
    return [{"role": {"s": "system", "u": "user", "a": "assistant"}[role], "content": content} for role, content in pairs]


CONVERSATIONS = [
    turns(("u", "hi")), turns(("s", "be short"), ("u", "hi")), turns(("u", "hi"), ("a", "hello"), ("u", "what?")), turns(("s", "be short"), ("u", "hi"), ("a", "hello"), ("u", "what?")),
    turns(("u", "  two spaces \n\n")), turns(("u", "hi"), ("a", "hello")), turns(("s", "be short"), ("u", "hi"), ("a", "hello")), turns(("u", "hi"), ("u", "there")), turns(("s", "alone")), turns(("u", "hi"), ("s", "late"), ("u", "so?")), turns(("a", "first"), ("u", "hi")),
    turns(("u", "hi"), ("a", "<think>\nhm\n</think>\n\nyes"), ("u", "sure?")), turns(("u", "hi"), ("a", "<think>\nhm\n</think>\n\nyes")), turns(("s", ""), ("u", "hi")), turns(("s", " brief \n"), ("u", "\u3000u "), ("a", "  a\t"), ("u", " v\x1c")),
]


def render_chats(folder):
    """What transformers' Jinja gives for each template and conversation, with and without the opening of an answer."""
    from jinja2.exceptions import TemplateError
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    def raise_exception(message):
        raise TemplateError(message)

    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    environment.globals.update(raise_exception=raise_exception, strftime_now=lambda format: "26 Jul 2024")
    rows = {}
    for path in sorted(pathlib.Path(folder).glob("*.jinja")):
        template = environment.from_string(path.read_text())
        results = []
        for messages in CONVERSATIONS:
            for answer in (True, False):
                try:
                    text = template.render(messages=messages, add_generation_prompt=answer, bos_token="<s>", eos_token="</s>")
                    lost = any(m["content"].strip().split("</think>")[-1].strip() not in text for m in messages)
                    results.append({"text": text} | ({"drops": True} if lost else {}))
                except TemplateError as error:
                    results.append({"error": str(error)})
        name = path.stem.split("--")[0]
        assert rows.get(name, results) == results, f"editions of {name} differ"
        rows[name] = results
    header = {"generator": "tools/make_tokenizer_goldens.py --templates", "versions": {"jinja2": importlib.metadata.version("jinja2")}}
    write(ROOT / "tests" / "golden" / "chat" / "renderings.json", header | {"conversations": CONVERSATIONS, "templates": rows})


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", help="one tokenizer by name")
    parser.add_argument("--train", action="store_true", help="train the small tokenizers anew (default: use those that are there)")
    parser.add_argument("--model", help="SmolLM2's GGUF file (default: what scripts/fetch-model prints)")
    parser.add_argument("--templates", help="a folder of chat templates: renders these and nothing else")
    args = parser.parse_args()
    if args.templates:
        render_chats(args.templates)
        return
    header = {"generator": "tools/make_tokenizer_goldens.py", "versions": versions()}
    if not args.only:
        write(OUT / "texts.json", header | {"texts": TEXTS})
    for name, make in small_tokenizers().items():
        if args.only in (None, name):
            path = OUT / name / "tokenizer.json"
            tok = make() if args.train or not path.exists() else Tokenizer.from_file(str(path))
            write(path, json.loads(tok.to_str()))
            extra = {"bytes": byte_rows(tok)} if name in ("gpt2", "llama3", "smollm") else {}
            write(OUT / name / "goldens.json", header | {"rows": goldens(tok)} | extra)
    for kind in ("llama", "t5"):
        if args.only in (None, kind):
            sentencepiece_case(kind)
    if args.only in (None, "smollm2"):
        path = args.model or subprocess.run([ROOT / "scripts" / "fetch-model"], check=True, capture_output=True, text=True).stdout.strip()
        tok = smollm2(path)
        write(OUT / "smollm2" / "goldens.json", header | {"rows": goldens(tok), "bytes": byte_rows(tok)})


if __name__ == "__main__":
    main()

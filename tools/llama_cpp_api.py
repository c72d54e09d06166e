"""The few calls of llama.cpp that comparisons need, through llama-cpp-python's low-level API.

Build it for the machine that runs it: CMAKE_ARGS=-DGGML_NATIVE=ON pip install llama-cpp-python
--no-binary llama-cpp-python
"""

import time

import llama_cpp
import numpy as np

_silent = llama_cpp.llama_log_callback(lambda _level, _text, _data: None)


class Model:
    """A GGUF model with one context of `sequences` sequences, `context` tokens each."""

    def __init__(self, path: str, threads: int, context: int, sequences: int = 1,
                 f32_cache: bool = False, ubatch: int = 512):
        llama_cpp.llama_log_set(_silent, None)
        llama_cpp.llama_backend_init()
        self.model = llama_cpp.llama_model_load_from_file(
            path.encode(), llama_cpp.llama_model_default_params())
        if not self.model:
            raise SystemExit(f"llama.cpp cannot load {path}")
        params = llama_cpp.llama_context_default_params()
        params.n_ctx = context * sequences
        params.n_seq_max = sequences
        params.n_batch = max(2048, context)
        params.n_ubatch = ubatch
        params.n_threads = params.n_threads_batch = threads
        params.no_perf = True
        params.kv_unified = False
        if f32_cache:
            params.type_k = params.type_v = 0  # GGML_TYPE_F32
            params.flash_attn_type = 0
        self.context = llama_cpp.llama_init_from_model(self.model, params)
        if not self.context:
            raise SystemExit(f"llama.cpp cannot make a context for {path}")
        self.vocabulary = llama_cpp.llama_vocab_n_tokens(
            llama_cpp.llama_model_get_vocab(self.model))
        self.batch = llama_cpp.llama_batch_init(params.n_batch, 0, 1)

    def decode(self, rows: list[tuple[int, int, int, bool]]) -> float:
        """Runs rows of (id, position, sequence, logits wanted); the seconds that llama.cpp took."""
        self.batch.n_tokens = len(rows)
        for i, (token, position, sequence, wanted) in enumerate(rows):
            self.batch.token[i] = token
            self.batch.pos[i] = position
            self.batch.n_seq_id[i] = 1
            self.batch.seq_id[i][0] = sequence
            self.batch.logits[i] = wanted
        start = time.perf_counter()
        status = llama_cpp.llama_decode(self.context, self.batch)
        if status:
            raise SystemExit(f"llama_decode gave {status}")
        llama_cpp.llama_synchronize(self.context)
        return time.perf_counter() - start

    def logits(self, row: int) -> np.ndarray:
        """A copy of the logits of one row of the last call (which asked for them)."""
        pointer = llama_cpp.llama_get_logits_ith(self.context, row)
        return np.ctypeslib.as_array(pointer, (self.vocabulary,)).copy()

    def clear(self) -> None:
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(self.context), True)

    def close(self) -> None:
        llama_cpp.llama_batch_free(self.batch)
        llama_cpp.llama_free(self.context)
        llama_cpp.llama_model_free(self.model)


def system_info() -> str:
    """What llama.cpp was built for and uses (AVX512, AMX and so on)."""
    return llama_cpp.llama_print_system_info().decode().strip()


def version() -> str:
    return llama_cpp.__version__



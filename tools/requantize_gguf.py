#!/usr/bin/env python3
"""Copies a GGUF file with its matrices in another type, from their dequantized values.

    python3 tools/requantize_gguf.py SOURCE.gguf TARGET.gguf Q8_0

Needs gguf and numpy. All metadata is kept; tensors of one dimension stay float32. Types: F32, F16,
BF16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0 (what gguf-py quantizes). One tensor is held in memory at a time,
the output apart.
"""

import argparse
import pathlib

import gguf
import numpy as np


def requantize(source: pathlib.Path, target: pathlib.Path, kind: str) -> None:
    reader = gguf.GGUFReader(source)
    writer = gguf.GGUFWriter(target, reader.fields["general.architecture"].contents(),
                             use_temp_file=True)
    wanted = gguf.GGMLQuantizationType[kind]
    for name, field in reader.fields.items():
        if name.startswith("GGUF.") or name == "general.architecture":
            continue
        value_type = field.types[0]
        element = field.types[-1] if value_type == gguf.GGUFValueType.ARRAY else None
        value = field.contents()
        if name == "general.file_type":
            value = int(gguf.LlamaFileType[f"MOSTLY_{kind}"] if kind != "F32" else 0)
        writer.add_key_value(name, value, value_type, element)
    for tensor in reader.tensors:
        shape = [int(n) for n in reversed(tensor.shape)]
        values = gguf.quants.dequantize(tensor.data, tensor.tensor_type).reshape(shape)
        if len(shape) == 1 or kind == "F32":
            writer.add_tensor(tensor.name, np.ascontiguousarray(values, np.float32))
        else:
            writer.add_tensor(tensor.name, gguf.quants.quantize(values, wanted), raw_dtype=wanted)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("source", type=pathlib.Path)
    parser.add_argument("target", type=pathlib.Path)
    parser.add_argument("type", choices=("F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1",
                                         "Q8_0"))
    a = parser.parse_args()
    requantize(a.source, a.target, a.type)


if __name__ == "__main__":
    main()

"""GGUF files taken apart and put together again, so that one thing in them can be broken (spec/models.md 8.1)."""
import struct

SCALARS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<B", 10: "<Q", 11: "<q", 12: "<d"}
STRING, ARRAY = 8, 9
U32, I32, F32 = 4, 5, 6


def text(value):
    raw = value if isinstance(value, bytes) else value.encode()
    return struct.pack("<Q", len(raw)) + raw


def array(kind, values):
    body = b"".join(text(v) if kind == STRING else struct.pack(SCALARS[kind], v) for v in values)
    return struct.pack("<IQ", kind, len(values)) + body


class Gguf:
    """keys: [name, type, payload bytes]; tensors: [name, dims, type, offset, data]; offsets are laid out by bytes()
    unless a tensor's offset is set."""

    def __init__(self, raw):
        self.raw, self.at = raw, 0
        assert self.take(4) == b"GGUF"
        self.version, tensors, keys = self.unpack("<I"), self.unpack("<Q"), self.unpack("<Q")
        self.keys = [[self.string(), *self.value()] for _ in range(keys)]
        infos = []
        for _ in range(tensors):
            name, rank = self.string(), self.unpack("<I")
            dims = [self.unpack("<Q") for _ in range(rank)]
            infos.append((name, dims, self.unpack("<I"), self.unpack("<Q")))
        self.header_end = self.at
        start = (self.at + 31) // 32 * 32
        ends = sorted(offset for *_, offset in infos) + [len(raw) - start]
        self.tensors = []
        for name, dims, kind, offset in infos:
            end = next(e for e in ends if e > offset)
            self.tensors.append([name, dims, kind, None, raw[start + offset:start + end]])

    def take(self, n):
        self.at += n
        return self.raw[self.at - n:self.at]

    def unpack(self, form):
        return struct.unpack(form, self.take(struct.calcsize(form)))[0]

    def string(self):
        return self.take(self.unpack("<Q"))

    def value(self):
        kind, start = self.unpack("<I"), self.at
        if kind == STRING:
            self.string()
        elif kind == ARRAY:
            element, count = self.unpack("<I"), self.unpack("<Q")
            for _ in range(count):
                self.string() if element == STRING else self.take(struct.calcsize(SCALARS[element]))
        else:
            self.take(struct.calcsize(SCALARS[kind]))
        return kind, self.raw[start:self.at]

    def set(self, name, kind, payload):
        name = name.encode()
        self.keys = [k for k in self.keys if k[0] != name] + ([[name, kind, payload]] if payload is not None else [])

    def tensor(self, name):
        return next(t for t in self.tensors if t[0] == name.encode())

    def bytes(self):
        out = b"GGUF" + struct.pack("<IQQ", self.version, len(self.tensors), len(self.keys))
        for name, kind, payload in self.keys:
            out += text(name) + struct.pack("<I", kind) + payload
        data = b""
        for name, dims, kind, offset, content in self.tensors:
            data += b"\0" * (-len(data) % 32)
            out += text(name) + struct.pack("<I", len(dims)) + b"".join(struct.pack("<Q", d) for d in dims)
            out += struct.pack("<IQ", kind, len(data) if offset is None else offset)
            data += content
        return out + b"\0" * (-len(out) % 32) + data

// A zip without compression: how many pictures travel in one request, so that they are one change.

const TABLE = Uint32Array.from({ length: 256 }, (_, n) => {
  for (let k = 0; k < 8; k += 1) n = n & 1 ? 0xedb88320 ^ (n >>> 1) : n >>> 1;
  return n;
});

function checksum(bytes) {
  let sum = 0xffffffff;
  for (const byte of bytes) sum = TABLE[(sum ^ byte) & 255] ^ (sum >>> 8);
  return (sum ^ 0xffffffff) >>> 0;
}

function numbers(...pairs) {
  // each pair is a number and how many bytes it takes, the lowest first
  return Uint8Array.from(pairs.flatMap(([value, size]) => Array.from({ length: size }, (_, k) => (value / 2 ** (8 * k)) & 255)));
}

export async function zip(files) {
  // files: [{ path, blob }]
  const UTF8 = 0x800, parts = [], list = [];
  let offset = 0;
  for (const { path, blob } of files) {
    const name = new TextEncoder().encode(path), bytes = new Uint8Array(await blob.arrayBuffer());
    const about = [[20, 2], [UTF8, 2], [0, 2], [0, 2], [33, 2], [checksum(bytes), 4], [bytes.length, 4], [bytes.length, 4], [name.length, 2], [0, 2]];
    parts.push(numbers([0x04034b50, 4], ...about), name, bytes);
    list.push(numbers([0x02014b50, 4], [20, 2], ...about, [0, 2], [0, 2], [0, 2], [0, 4], [offset, 4]), name);
    offset += 30 + name.length + bytes.length;
  }
  const size = list.reduce((sum, { length }) => sum + length, 0);
  const end = numbers([0x06054b50, 4], [0, 2], [0, 2], [files.length, 2], [files.length, 2], [size, 4], [offset, 4], [0, 2]);
  return new Blob([...parts, ...list, end], { type: "application/zip" });
}

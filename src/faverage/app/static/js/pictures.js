// Pictures that people bring: opened, made smaller, and freed again.

import { make, Trouble } from "./dom.js";
import { predict } from "./server.js";

export const MOST = 100, MOST_BYTES = 8 * 2 ** 20, SIDE = 1024;

export const toBlob = (canvas, kind = "image/png", quality = 0.92) =>
  new Promise((resolve, reject) => canvas.toBlob((b) => (b ? resolve(b) : reject(new Error("no picture"))), kind, quality));

export async function fromFile(file) {
  // large pictures are made smaller here; what the browser cannot open, the server judges
  const called = file.name || "picture";
  let bitmap;
  try {
    bitmap = await createImageBitmap(file);
  } catch {
    if (file.size > MOST_BYTES) throw new Trouble(`${called} is larger than 8 MB.`);
    await predict([{ blob: file, called }]).catch((error) => { if (error.status !== 409) throw error; }); // a picture, but nothing is known yet
    return { blob: file, called, url: "/icon.svg" };
  }
  let blob = file;
  const scale = SIDE / Math.max(bitmap.width, bitmap.height);
  if (scale < 1) {
    const canvas = make("canvas", { width: Math.max(1, Math.round(bitmap.width * scale)), height: Math.max(1, Math.round(bitmap.height * scale)) });
    canvas.getContext("2d").drawImage(bitmap, 0, 0, canvas.width, canvas.height);
    blob = await toBlob(canvas, "image/jpeg");
  }
  bitmap.close();
  return { blob, called, url: URL.createObjectURL(blob) };
}

export async function fromFiles(files) {
  // one after the other: a hundred photos at once would fill the memory of a phone
  const pictures = [];
  for (const file of files) pictures.push(await fromFile(file));
  return pictures;
}

const keepers = [];

export function keptBy(holds) { keepers.push(holds); }

export function drop(picture) {
  // frees a picture that nobody shows any more
  if (picture?.url.startsWith("blob:") && !keepers.some((holds) => holds(picture))) URL.revokeObjectURL(picture.url);
}

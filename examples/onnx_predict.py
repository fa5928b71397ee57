"""Ask an exported model with onnxruntime, NumPy and Pillow alone: python onnx_predict.py MODEL.onnx PHOTO...

Make the file with: faverage export MODEL model.onnx
"""

import json
import sys

import numpy as np
import onnxruntime
from PIL import Image, ImageOps

if len(sys.argv) < 3:
    sys.exit(__doc__)
session = onnxruntime.InferenceSession(sys.argv[1], providers=["CPUExecutionProvider"])
about = session.get_modelmeta().custom_metadata_map
classes, side = json.loads(about["classes"]), int(about["side"])
for path in sys.argv[2:]:
    photo = ImageOps.exif_transpose(Image.open(path)).convert("RGB")
    if side >= 128:  # large models see the middle, small ones the whole photo
        photo = ImageOps.fit(photo, (side, side), Image.Resampling.BILINEAR)
    pixels = np.asarray(photo.resize((side, side), Image.Resampling.BILINEAR), dtype=np.uint8)
    (found,) = session.run(["probabilities"], {"images": pixels[None]})
    best = np.argsort(-found[0])[:3]
    print(f"{path}: " + ", ".join(f"{classes[i]} {found[0, i]:.0%}" for i in best))

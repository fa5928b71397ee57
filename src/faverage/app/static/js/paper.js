// Paper to draw on: strokes are kept as lines, so that a drawing can be centred and sent with an even pen.

import { make } from "./dom.js";
import { toBlob } from "./pictures.js";
import { state } from "./state.js";

const PEN = { box: 0.8, width: 0.12 }; // of the side of the picture that is sent

export class Paper {
  constructor(canvas, changed) {
    this.canvas = canvas;
    this.changed = changed;
    this.strokes = [];
    let stroke = null;
    const point = (event) => {
      const box = canvas.getBoundingClientRect();
      return [(event.clientX - box.left) / box.width, (event.clientY - box.top) / box.height];
    };
    canvas.addEventListener("pointerdown", (event) => {
      if (event.button) return;
      canvas.setPointerCapture(event.pointerId);
      stroke = [point(event)];
      this.strokes.push(stroke);
      this.show();
    });
    canvas.addEventListener("pointermove", (event) => {
      if (!stroke) return;
      for (const one of event.getCoalescedEvents?.() ?? [event]) stroke.push(point(one));
      this.show();
      this.changed();
    });
    for (const kind of ["pointerup", "pointercancel"]) {
      canvas.addEventListener(kind, () => { if (stroke) { stroke = null; this.changed(); } });
    }
    this.show();
  }

  get empty() { return this.strokes.length === 0; }

  clear() { this.strokes = []; this.show(); }

  show() {
    const { width } = this.canvas;
    paint(this.canvas, this.strokes.map((s) => s.map(([x, y]) => [x * width, y * width])), width * 0.055, "white");
    if (!this.empty) return;
    const pen = this.canvas.getContext("2d");
    pen.fillStyle = "#6b7280";
    pen.font = `${width * 0.055}px system-ui, sans-serif`;
    pen.textAlign = "center";
    pen.fillText("Draw here", width / 2, width / 2);
  }

  async picture() {
    const points = this.strokes.flat();
    const [left, right] = [Math.min(...points.map((p) => p[0])), Math.max(...points.map((p) => p[0]))];
    const [top, bottom] = [Math.min(...points.map((p) => p[1])), Math.max(...points.map((p) => p[1]))];
    const side = 128, scale = side * Math.min(PEN.box / Math.max(right - left, bottom - top, 1e-6), 2.5);
    const canvas = make("canvas", { width: side, height: side });
    const place = ([x, y]) => [side / 2 + (x - (left + right) / 2) * scale, side / 2 + (y - (top + bottom) / 2) * scale];
    paint(canvas, this.strokes.map((s) => s.map(place)), side * PEN.width, state.drawing.ground);
    const blob = await toBlob(canvas);
    return { blob, called: "drawing.png", url: URL.createObjectURL(blob) };
  }
}

function paint(canvas, strokes, width, ground) {
  const pen = canvas.getContext("2d");
  pen.fillStyle = ground;
  pen.fillRect(0, 0, canvas.width, canvas.height);
  pen.strokeStyle = ground === "white" ? "black" : "white";
  pen.lineWidth = width;
  pen.lineCap = pen.lineJoin = "round";
  for (const [first, ...rest] of strokes) {
    pen.beginPath();
    pen.moveTo(...first);
    for (const point of rest.length ? rest : [first]) pen.lineTo(...point);
    pen.stroke();
  }
}

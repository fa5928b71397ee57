// The camera: a view of it, and pictures out of it.

import { make, Trouble } from "./dom.js";
import { toBlob } from "./pictures.js";

export class Camera {
  constructor(video) { this.video = video; this.stream = null; }

  async start() {
    if (!navigator.mediaDevices) throw new Trouble("Browsers allow the camera only on this machine (localhost) or over https.");
    try {
      const video = { facingMode: "environment", width: { ideal: 640 }, height: { ideal: 640 } };
      this.stream = await navigator.mediaDevices.getUserMedia({ video, audio: false });
    } catch (error) {
      const denied = error.name === "NotAllowedError";
      throw new Trouble(denied ? "The browser was not allowed to use the camera." : "No camera could be started.");
    }
    this.video.classList.toggle("mirror", this.stream.getVideoTracks()[0].getSettings().facingMode !== "environment");
    this.video.srcObject = this.stream;
    await this.video.play();
  }

  stop() {
    this.stream?.getTracks().forEach((track) => track.stop());
    this.stream = this.video.srcObject = null;
  }

  async picture() {
    const { videoWidth: w, videoHeight: h } = this.video, side = Math.min(w, h);
    const canvas = make("canvas", { width: 256, height: 256 });
    canvas.getContext("2d").drawImage(this.video, (w - side) / 2, (h - side) / 2, side, side, 0, 0, 256, 256);
    const blob = await toBlob(canvas, "image/jpeg");
    return { blob, called: "camera.jpg", url: URL.createObjectURL(blob) };
  }
}

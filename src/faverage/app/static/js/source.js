// Where pictures come from: paper, camera, files; the same in both panels.

import { $, complain, Trouble } from "./dom.js";
import { Camera } from "./camera.js";
import { Paper } from "./paper.js";
import { drop, fromFiles, MOST } from "./pictures.js";

const PAUSE = 200; // milliseconds between two live answers, and between two pictures of a burst

export class Source {
  // add: takes pictures; live: takes one at a time while it is drawn or filmed, null when it is gone
  constructor(panel, { add, live, most = MOST }) {
    Object.assign(this, { panel, add, live, most, error: $(".error", panel) });
    const root = this.root = $(".source", panel);
    root.append($("#source").content.cloneNode(true));
    this.tabs = [...root.querySelectorAll("[role=tab]")];
    this.tabs.forEach((tab) => this.prepareTab(tab));
    this.paper = new Paper($(".paper", root), () => live && this.feed(() => this.paper.picture(), () => !this.paper.empty));
    this.camera = new Camera($(".view", root));
    this.prepareButtons();
    this.prepareFiles();
    for (const kind of ["pointerdown", "focusin"]) panel.addEventListener(kind, () => { Source.last = this; });
    document.addEventListener("visibilitychange", () => { if (document.hidden) this.stopCamera(); });
    this.show("draw");
    Source.all.push(this);
  }

  prepareTab(tab) {
    const pane = $(`[data-pane=${tab.dataset.tab}]`, this.root);
    tab.id = `${this.panel.id}-${tab.dataset.tab}`;
    pane.id = `${tab.id}-pane`;
    tab.setAttribute("aria-controls", pane.id);
    pane.setAttribute("aria-labelledby", tab.id);
    tab.addEventListener("click", () => this.show(tab.dataset.tab));
    tab.addEventListener("keydown", (event) => {
      const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      if (!step) return;
      const next = this.tabs[(this.tabs.indexOf(tab) + step + this.tabs.length) % this.tabs.length];
      this.show(next.dataset.tab);
      next.focus();
    });
  }

  prepareButtons() {
    const addDrawing = $(".add", this.root);
    addDrawing.hidden = Boolean(this.live);
    addDrawing.addEventListener("click", () => this.guard(async () => {
      if (this.paper.empty) throw new Trouble("The paper is empty: draw something first.");
      await this.add([await this.paper.picture()]);
      this.paper.clear();
    }));
    $(".clear", this.root).addEventListener("click", () => { this.paper.clear(); this.live?.(null); });
    $(".start", this.root).addEventListener("click", () => this.guard(() => (this.camera.stream ? this.stopCamera() : this.startCamera())));
    this.holdable($(".shoot", this.root));
  }

  prepareFiles() {
    const { panel } = this, file = $("input[type=file]", this.root);
    $(".drop-text", this.root).textContent = `Drop up to ${this.most} pictures here, paste them, or choose files`;
    file.addEventListener("change", () => { this.files([...file.files]); file.value = ""; });
    panel.addEventListener("dragover", (event) => { event.preventDefault(); panel.classList.add("over"); });
    panel.addEventListener("dragleave", (event) => { if (!panel.contains(event.relatedTarget)) panel.classList.remove("over"); });
    panel.addEventListener("drop", (event) => {
      event.preventDefault();
      panel.classList.remove("over");
      this.files([...event.dataTransfer.files]);
    });
  }

  show(name) {
    for (const tab of this.tabs) {
      const chosen = tab.dataset.tab === name;
      tab.setAttribute("aria-selected", chosen);
      tab.tabIndex = chosen ? 0 : -1;
      $(`[data-pane=${tab.dataset.tab}]`, this.root).hidden = !chosen;
    }
    if (name !== "camera") this.stopCamera();
    if (name !== "file") this.preview(null);
    this.error.hidden = true;
  }

  preview(picture) {
    // a chosen photo is shown as large as the panel is
    const image = $(".chosen", this.root), label = $(".drop", this.root);
    image.hidden = !picture;
    label.classList.toggle("has", Boolean(picture));
    if (picture) Object.assign(image, { src: picture.url, alt: picture.called });
    else image.removeAttribute("src");
  }

  async guard(work) {
    this.error.hidden = true;
    try { await work(); } catch (error) { complain(this.error, error); }
  }

  async files(files) {
    if (!files.length) return;
    await this.guard(async () => {
      if (files.length > this.most) throw new Trouble(`At most ${this.most} pictures at a time.`);
      if (this.whole) await this.whole(files);
      else await this.add(await fromFiles(files));
    });
  }

  async startCamera() {
    Source.all.filter((other) => other !== this).forEach((other) => other.stopCamera());
    await this.camera.start();
    $(".start", this.root).textContent = "Stop";
    $(".start", this.root).classList.add("plain");
    $(".shoot", this.root).hidden = Boolean(this.live);
    if (!this.live) return;
    const tick = () => {
      if (!this.camera.stream) return;
      this.feed(() => this.camera.picture(), () => this.camera.stream);
      setTimeout(tick, PAUSE);
    };
    tick();
  }

  stopCamera() {
    if (!this.camera.stream) return;
    this.camera.stop();
    $(".start", this.root).textContent = "Start the camera";
    $(".start", this.root).classList.remove("plain");
    $(".shoot", this.root).hidden = true;
  }

  holdable(button) {
    // a press takes one picture; holding it takes a burst
    let timer = null;
    const stop = () => { clearInterval(timer); timer = null; };
    const shoot = () => this.guard(async () => {
      try {
        await this.add([await this.camera.picture()]);
      } catch (error) {
        stop();
        throw error;
      }
    });
    button.addEventListener("pointerdown", (event) => { if (event.button) return; shoot(); stop(); timer = setInterval(shoot, PAUSE); });
    for (const kind of ["pointerup", "pointerleave", "pointercancel", "blur"]) button.addEventListener(kind, stop);
    button.addEventListener("contextmenu", (event) => event.preventDefault()); // a long press on a phone
    button.addEventListener("click", (event) => { if (event.detail === 0) shoot(); }); // by keyboard
  }

  async feed(picture, still) {
    // one question at a time; what happens meanwhile is asked about afterwards
    if (this.feeding) { this.again = [picture, still]; return; }
    this.feeding = true;
    try {
      if (still()) {
        const taken = await picture();
        if (!await this.live(taken, still)) drop(taken);
      }
      this.error.hidden = true;
    } catch (error) {
      complain(this.error, error); // which says the same thing once, however often it happens
    }
    this.feeding = false;
    const again = this.again;
    this.again = null;
    if (again) this.feed(...again);
  }
}
Source.all = [];
Source.last = null;

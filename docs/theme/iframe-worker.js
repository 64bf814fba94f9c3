// SPDX-License-Identifier: Apache-2.0
// The search of the site runs in a worker, which browsers refuse to pages opened as files. For those this is a worker in a
// hidden frame: the same script, the same messages.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    #waiting = [];
    #frame = document.createElement("iframe");

    constructor(url) {
      super();
      this.#frame.hidden = true;
      document.documentElement.append(this.#frame);
      const scope = this.#frame.contentWindow;
      const deliver = (type, data) => queueMicrotask(() => this.dispatchEvent(new MessageEvent(type, { data })));
      scope.postMessage = (data) => deliver("message", structuredClone(data));
      const script = scope.document.createElement("script");
      script.src = new URL(url, location.href);
      script.onload = () => {
        const waiting = this.#waiting;
        this.#waiting = null;
        waiting.forEach((data) => this.postMessage(data));
      };
      scope.document.documentElement.append(script);
    }

    postMessage(data) {
      if (this.#waiting) this.#waiting.push(data);
      else {
        const scope = this.#frame.contentWindow;
        scope.dispatchEvent(new scope.MessageEvent("message", { data }));
      }
    }

    terminate() {
      this.#frame.remove();
    }
  };
}

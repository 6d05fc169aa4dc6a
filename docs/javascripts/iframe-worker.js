// The search of the theme runs in a Worker, and browsers start no Worker on a page that is opened
// from a file. There, run its script in a hidden frame instead.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      document.body.append(this.frame);
      const scope = this.frame.contentWindow;
      const load = (source) =>
        new Promise((resolve, reject) => {
          const script = scope.document.createElement("script");
          script.src = source;
          script.onload = resolve;
          script.onerror = reject;
          scope.document.body.append(script);
        });
      // The functions that a script finds in the global scope of a Worker.
      scope.importScripts = async (...sources) => {
        for (const source of sources) await load(source);
      };
      scope.postMessage = (data) => this.receive(this, data);
      this.ready = load(String(url));
    }

    // A Worker gets copies of messages, and gets them later.
    receive(target, data) {
      const message = new MessageEvent("message", { data: structuredClone(data) });
      setTimeout(() => target.dispatchEvent(message));
    }

    postMessage(data) {
      this.ready.then(() => this.receive(this.frame.contentWindow, data));
    }

    terminate() {
      this.frame.remove();
    }
  };
}

// Search in a site that was opened from a folder. Browsers start no worker from a file, so the worker's script runs in a
// hidden frame, which exchanges messages with the page as a worker does. Material's worker looks for this name.
class IFrameWorker extends EventTarget {
  constructor(url) {
    super();
    const frame = document.createElement("iframe");
    frame.hidden = true;
    document.body.append(frame);
    const scope = frame.contentWindow;
    // Messages that come before the script has been read wait for it.
    this.ready = new Promise(resolve => (frame.onload = () => resolve(scope)));
    scope.document.open();
    scope.postMessage = data => this.dispatchEvent(new MessageEvent("message", { data }));
    const script = scope.document.createElement("script");
    script.src = url;
    scope.document.write(script.outerHTML);
    scope.document.close();
  }

  postMessage(data) {
    this.ready.then(scope => scope.dispatchEvent(new MessageEvent("message", { data })));
  }
}

if (location.protocol === "file:") {
  window.IFrameWorker = window.Worker = IFrameWorker;
}

// Browsers start no workers for pages opened from a disk. There, a hidden frame does the work of the search instead.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super()
      this.frame = document.createElement("iframe")
      this.frame.hidden = true
      this.ready = new Promise(done => {
        const start = () => {
          const inside = this.frame.contentWindow
          inside.postMessage = data => this.dispatchEvent(new MessageEvent("message", { data }))
          const script = inside.document.createElement("script")
          script.src = url
          script.onload = done
          inside.document.body.append(script)
        }
        const add = () => { document.body.append(this.frame); start() }
        document.body ? add() : addEventListener("DOMContentLoaded", add)
      })
    }
    postMessage(data) {
      this.ready.then(() => this.frame.contentWindow.dispatchEvent(new MessageEvent("message", { data })))
    }
  }
}

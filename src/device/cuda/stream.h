// device/cuda/stream.h -- ordered work on one CUDA device: Stream, Event, Graph.
#pragma once
#include <cuda_runtime.h>

#include <utility>

#include "device/cuda/check.h"

namespace se::cuda {

class Event {  // with timing
 public:
  Event() { SE_CUDA(cudaEventCreate(&event_)); }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  ~Event() { SE_CUDA(cudaEventDestroy(event_)); }
  cudaEvent_t get() const { return event_; }
  void wait() const { SE_CUDA(cudaEventSynchronize(event_)); }
  // Microseconds from `begin` to this one; both must have happened.
  float microseconds_since(const Event& begin) const {
    float ms = 0;
    SE_CUDA(cudaEventElapsedTime(&ms, begin.event_, event_));
    return ms * 1000;
  }

 private:
  cudaEvent_t event_ = nullptr;
};

// A captured sequence of launches. Movable; launch it on any stream of its device.
class Graph {
 public:
  Graph() = default;
  explicit Graph(cudaGraph_t graph) {
    SE_CUDA(cudaGraphInstantiate(&exec_, graph, 0));
    SE_CUDA(cudaGraphDestroy(graph));
  }
  Graph(Graph&& other) noexcept { std::swap(exec_, other.exec_); }
  Graph& operator=(Graph&& other) noexcept {
    std::swap(exec_, other.exec_);
    return *this;
  }
  ~Graph() {
    if (exec_) SE_CUDA(cudaGraphExecDestroy(exec_));
  }
  bool empty() const { return exec_ == nullptr; }
  void launch(cudaStream_t stream) const { SE_CUDA(cudaGraphLaunch(exec_, stream)); }

 private:
  cudaGraphExec_t exec_ = nullptr;
};

// Not thread-safe: one owner.
class Stream {
 public:
  Stream() { SE_CUDA(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking)); }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  ~Stream() { SE_CUDA(cudaStreamDestroy(stream_)); }
  cudaStream_t get() const { return stream_; }
  void synchronize() const { SE_CUDA(cudaStreamSynchronize(stream_)); }
  void record(const Event& event) const { SE_CUDA(cudaEventRecord(event.get(), stream_)); }
  void wait(const Event& event) const { SE_CUDA(cudaStreamWaitEvent(stream_, event.get(), 0)); }
  // What `work` enqueues on this stream, as a graph; nothing runs. `work` must not synchronise or allocate.
  template <typename Work>
  Graph capture(Work&& work) const {
    SE_CUDA(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal));
    std::forward<Work>(work)();
    cudaGraph_t graph = nullptr;
    SE_CUDA(cudaStreamEndCapture(stream_, &graph));
    return Graph(graph);
  }

 private:
  cudaStream_t stream_ = nullptr;
};

}  // namespace se::cuda

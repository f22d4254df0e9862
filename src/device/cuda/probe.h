// device/cuda/probe.h -- whether this build's device code runs on the current device.
#pragma once

namespace se::cuda {

bool has_code_for_current_device();
const char* built_architectures();  // "sm_90a"

}  // namespace se::cuda

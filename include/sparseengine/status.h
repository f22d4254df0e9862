// sparseengine/status.h -- the errors of the public surface.
#pragma once
#include "base/status.h"

/* NVIDIA's management library as far as torch asks it (NVML API reference, nvmlDeviceQueries):
   of a node whose driver lists DEVICES devices, of which the one numbered LOST does not answer.
   DEVICES is -1 where no driver is loaded. */

#include <stdint.h>

enum { SUCCESS = 0, INVALID_ARGUMENT = 2, DRIVER_NOT_LOADED = 9, GPU_IS_LOST = 15 };
typedef struct { unsigned long long total, free, used; } Memory;

#define MEMORY_BYTES 42949672960ULL
#define CONTEXT_BYTES 1649410048ULL

int nvmlInit(void) { return DEVICES < 0 ? DRIVER_NOT_LOADED : SUCCESS; }

int nvmlDeviceGetCount_v2(unsigned *count) {
  *count = DEVICES;
  return nvmlInit();
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device) {
  if ((int)index >= DEVICES) return INVALID_ARGUMENT;
  *device = (void *)(uintptr_t)(index + 1);
  return (int)index == LOST ? GPU_IS_LOST : SUCCESS;
}

int nvmlDeviceGetMemoryInfo(void *device, Memory *memory) {
  (void)device;
  memory->total = MEMORY_BYTES;
  memory->used = CONTEXT_BYTES;
  memory->free = MEMORY_BYTES - CONTEXT_BYTES;
  return SUCCESS;
}

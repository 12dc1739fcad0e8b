/* A stand-in for libnvidia-ml.so.1: answers what a small text file says, so that whatever asks NVML can be
 * tested without a GPU. Built by tests/nvml_stub/__init__.py; NVML_STUB_CONFIG names the file.
 *
 * The file is read anew at every call, so a test may change it while a program is running. A line is
 * `KEY = VALUE`; `#` begins a comment. `gpu*.` is for every GPU and gives way to `gpu3.`; of a key given twice
 * the last counts, except for the lists (process, mig_device). Values:
 *
 *     NUMBER      decimal or 0x…
 *     na          NVML_ERROR_NOT_SUPPORTED, which tools print as N/A
 *     error CODE  that nvmlReturn_t, as in nvml.h (15 GPU is lost, 999 unknown)
 *
 * system.count = 8                 GPUs; without a file there are 8
 * system.init = error 9            what nvmlInit answers (9: driver not loaded, 18: library and driver differ)
 * system.driver_version, nvml_version = 570.86.10      system.cuda_version = 12080
 * system.missing = NAME NAME …     functions this driver lacks (NVML_ERROR_FUNCTION_NOT_FOUND), by symbol
 *
 * gpuN.error = 15                  every call on this GPU fails so, the handle's included …
 * gpuN.error_after = 3             … after this many have succeeded since nvmlInit: fails in the middle
 * gpuN.name, uuid, serial, pci_bus_id                  texts; UUIDs default to GPU-0000000N-…
 * gpuN.minor, architecture, compute_capability (9.0), performance_state, numa_node
 * gpuN.memory_total, memory_used, memory_reserved      bytes (`memory_used = na`: the whole call fails so)
 * gpuN.bar1_total, bar1_used                           bytes
 * gpuN.utilisation, memory_utilisation                 percent
 * gpuN.temperature                                     °C
 * gpuN.power, power_limit, enforced_power_limit, power_limit_min, power_limit_max      mW
 * gpuN.clock_graphics, clock_sm, clock_mem, clock_video, and the same with max_clock_  MHz
 * gpuN.throttle_reasons                                the bit mask
 * gpuN.persistence, compute_mode, ecc, ecc_pending     0, 1 …
 * gpuN.ecc_corrected_volatile, ecc_uncorrected_volatile, ecc_corrected_aggregate, ecc_uncorrected_aggregate
 * gpuN.remapped_correctable, remapped_uncorrectable, remap_pending, remap_failure
 * gpuN.retired_pages (a count), retired_pages_pending
 * gpuN.pcie_gen, pcie_gen_max, pcie_gen_gpu_max, pcie_width, pcie_width_max
 * gpuN.fabric_state (0 not supported, 2 in progress, 3 completed), fabric_status, fabric_clique, fabric_health
 * gpuN.field118                                        nvmlDeviceGetFieldValues, by field id; else not supported
 * gpuN.cpu_affinity = 0-11,24-35   gpuN.memory_affinity = 0
 * gpuN.process = PID KIND BYTES    KIND compute, graphics or mps; BYTES may be na; the line may be repeated
 * gpuN.mig = 1                     MIG mode (default na); gpuN.mig_pending
 * gpuN.mig_device = UUID           an instance, in order; `none` is an empty slot; may be repeated
 * gpuN.nvlinks = 0-5:gpu1 6-11:switch 12:down          which link leads where; links not listed: not supported
 * gpuN.nvlink_version (default 4)
 * pair.0-1.ancestor = PIX          INT, PIX, PXB, PHB, NODE or SYS (default); pair.* for all
 * pair.0-1.p2p = 0                 nvmlGpuP2PStatus_t, for every capability (0: OK)
 */
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define EXPORT __attribute__((visibility("default")))

enum {
    OK = 0, UNINITIALIZED = 1, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, INSUFFICIENT_SIZE = 7,
    FUNCTION_NOT_FOUND = 13, MAX_GPUS = 32, MAX_SLOTS = 8, MAX_LINKS = 18
};
typedef unsigned int uint;
typedef unsigned long long u64;
#define NOT_AVAILABLE (~0ULL)

/* A handle points to one of these; slot -1 is the whole GPU. */
typedef struct { int gpu, slot; } Device;
static Device devices[MAX_GPUS], instances[MAX_GPUS][MAX_SLOTS];
static int num_inits, num_calls[MAX_GPUS];
static char text[1 << 16];

/* ---- the file ---- */

static void read_file(void) {
    const char *path = getenv("NVML_STUB_CONFIG");
    FILE *file = path ? fopen(path, "r") : NULL;
    size_t size = file ? fread(text, 1, sizeof text - 1, file) : 0;
    text[size] = 0;
    if (file) fclose(file);
}

static void trim(char *word) {
    char *end = word + strlen(word);
    while (end > word && isspace((unsigned char)end[-1])) *--end = 0;
    char *start = word;
    while (isspace((unsigned char)*start)) start++;
    memmove(word, start, strlen(start) + 1);
}

/* The value of occurrence `nth` of `key` (-1: the last) into `value` (256 bytes); whether there is one. */
static int find(const char *key, int nth, char *value) {
    int found = 0, seen = 0;
    for (const char *line = text; *line;) {
        size_t size = strcspn(line, "\n");
        char copy[1024];
        snprintf(copy, sizeof copy, "%.*s", (int)size, line);
        line += size + (line[size] == '\n');
        copy[strcspn(copy, "#")] = 0;
        char *equals = strchr(copy, '=');
        if (!equals) continue;
        *equals = 0;
        trim(copy);
        trim(equals + 1);
        if (strcmp(copy, key) || (nth >= 0 && seen++ != nth)) continue;
        snprintf(value, 256, "%s", equals + 1);
        found = 1;
    }
    return found;
}

static int find_gpu(int gpu, const char *name, int nth, char *value) {
    char key[128];
    snprintf(key, sizeof key, "gpu%d.%s", gpu, name);
    if (find(key, -1, value)) return find(key, nth, value);
    snprintf(key, sizeof key, "gpu*.%s", name);
    return find(key, nth, value);
}

/* An nvmlReturn_t, and the number where that is OK. */
static int parse(const char *value, u64 *out) {
    if (!strcmp(value, "na")) return NOT_SUPPORTED;
    if (!strncmp(value, "error", 5)) return atoi(value + 5);
    *out = strtoull(value, NULL, 0);
    return OK;
}

static int number(int gpu, const char *name, u64 otherwise, u64 *out) {
    char value[256];
    *out = otherwise;
    return find_gpu(gpu, name, -1, value) ? parse(value, out) : OK;
}

static int system_number(const char *key, u64 otherwise, u64 *out) {
    char value[256];
    *out = otherwise;
    return find(key, -1, value) ? parse(value, out) : OK;
}

static int put_text(char *out, uint size, const char *value) {
    u64 unused;
    if (!strcmp(value, "na") || !strncmp(value, "error", 5)) return parse(value, &unused);
    if (strlen(value) + 1 > size) return INSUFFICIENT_SIZE;
    strcpy(out, value);
    return OK;
}

/* ---- what each call begins with ---- */

static int is_missing(const char *function) {
    char value[256], *at = value, *word;
    if (!find("system.missing", -1, value)) return 0;
    while ((word = strsep(&at, " ,"))) if (!strcmp(word, function)) return 1;
    return 0;
}

static int enter_system(const char *function) {
    read_file();
    if (is_missing(function)) return FUNCTION_NOT_FOUND;
    return num_inits ? OK : UNINITIALIZED;
}

static int count(void) {
    u64 gpus;
    system_number("system.count", 8, &gpus);
    return gpus > MAX_GPUS ? MAX_GPUS : (int)gpus;
}

static int failure_of(int gpu) {
    u64 code, after;
    char value[256];
    if (!find_gpu(gpu, "error", -1, value)) return OK;
    code = strtoull(value, NULL, 0);
    number(gpu, "error_after", 0, &after);
    return num_calls[gpu] > (int)after ? (int)code : OK;
}

static int enter(const Device *device, const char *function) {
    int result = enter_system(function);
    if (result) return result;
    if (!device || device->gpu >= count()) return INVALID_ARGUMENT;
    num_calls[device->gpu]++;
    return failure_of(device->gpu);
}

#define ENTER(device) do { int entered = enter(device, __func__); if (entered) return entered; } while (0)
#define ENTER_SYSTEM() do { int entered = enter_system(__func__); if (entered) return entered; } while (0)

/* ---- the library and the machine ---- */

static int start(void) {
    u64 unused;
    read_file();
    int result = system_number("system.init", 0, &unused);
    if (result) return result;
    for (int gpu = 0; gpu < MAX_GPUS; gpu++) {
        devices[gpu] = (Device){gpu, -1};
        for (int slot = 0; slot < MAX_SLOTS; slot++) instances[gpu][slot] = (Device){gpu, slot};
        if (!num_inits) num_calls[gpu] = 0;
    }
    num_inits++;
    return OK;
}
EXPORT int nvmlInit_v2(void) { return start(); }
EXPORT int nvmlInitWithFlags(uint flags) { (void)flags; return start(); }
EXPORT int nvmlShutdown(void) {
    if (!num_inits) return UNINITIALIZED;
    num_inits--;
    return OK;
}

EXPORT const char *nvmlErrorString(int code) {
    switch (code) {
        case OK: return "Success";
        case UNINITIALIZED: return "Uninitialized";
        case INVALID_ARGUMENT: return "Invalid Argument";
        case NOT_SUPPORTED: return "Not Supported";
        case NOT_FOUND: return "Not Found";
        case FUNCTION_NOT_FOUND: return "Function Not Found";
        case 9: return "Driver Not Loaded";
        case 15: return "GPU is lost";
        case 18: return "Driver/library version mismatch";
        default: return "Unknown Error";
    }
}

static int system_text(const char *key, const char *otherwise, char *out, uint size) {
    char value[256];
    return put_text(out, size, find(key, -1, value) ? value : otherwise);
}
EXPORT int nvmlSystemGetDriverVersion(char *out, uint size) {
    ENTER_SYSTEM();
    return system_text("system.driver_version", "570.86.10", out, size);
}
EXPORT int nvmlSystemGetNVMLVersion(char *out, uint size) {
    ENTER_SYSTEM();
    return system_text("system.nvml_version", "12.570.86.10", out, size);
}
static int cuda_version(int *out) {
    u64 version;
    int result = system_number("system.cuda_version", 12080, &version);
    *out = (int)version;
    return result;
}
EXPORT int nvmlSystemGetCudaDriverVersion(int *out) { ENTER_SYSTEM(); return cuda_version(out); }
EXPORT int nvmlSystemGetCudaDriverVersion_v2(int *out) { ENTER_SYSTEM(); return cuda_version(out); }

/* ---- finding a GPU ---- */

static void uuid_of(int gpu, char *out) {
    if (!find_gpu(gpu, "uuid", -1, out)) sprintf(out, "GPU-%08x-1111-2222-3333-444444444444", gpu);
}
static void bus_of(int gpu, char *out) {
    if (!find_gpu(gpu, "pci_bus_id", -1, out)) sprintf(out, "00000000:%02X:00.0", 0x10 + gpu);
}

EXPORT int nvmlDeviceGetCount_v2(uint *out) {
    u64 gpus;
    ENTER_SYSTEM();
    int result = system_number("system.count", 8, &gpus);
    *out = (uint)count();
    return result;
}
EXPORT int nvmlDeviceGetHandleByIndex_v2(uint index, Device **out) {
    ENTER_SYSTEM();
    if ((int)index >= count()) return INVALID_ARGUMENT;
    *out = &devices[index];
    return enter(*out, __func__);
}
EXPORT int nvmlDeviceGetHandleByUUID(const char *uuid, Device **out) {
    char value[256];
    ENTER_SYSTEM();
    for (int gpu = 0; gpu < count(); gpu++) {
        uuid_of(gpu, value);
        if (!strcmp(uuid, value)) return *out = &devices[gpu], enter(*out, __func__);
        for (int slot = 0; slot < MAX_SLOTS && find_gpu(gpu, "mig_device", slot, value); slot++)
            if (!strcmp(uuid, value)) return *out = &instances[gpu][slot], enter(*out, __func__);
    }
    return NOT_FOUND;
}
static int same_bus(const char *one, const char *other) {
    uint a[4] = {0}, b[4] = {0};
    return sscanf(one, "%x:%x:%x.%x", a, a + 1, a + 2, a + 3) == 4 &&
           sscanf(other, "%x:%x:%x.%x", b, b + 1, b + 2, b + 3) == 4 && !memcmp(a, b, sizeof a);
}
EXPORT int nvmlDeviceGetHandleByPciBusId_v2(const char *bus, Device **out) {
    char value[256];
    ENTER_SYSTEM();
    for (int gpu = 0; gpu < count(); gpu++) {
        bus_of(gpu, value);
        if (same_bus(bus, value)) return *out = &devices[gpu], enter(*out, __func__);
    }
    return NOT_FOUND;
}

/* ---- who it is ---- */

EXPORT int nvmlDeviceGetUUID(Device *device, char *out, uint size) {
    char value[256];
    ENTER(device);
    if (device->slot < 0) uuid_of(device->gpu, value);
    else if (!find_gpu(device->gpu, "mig_device", device->slot, value)) return NOT_FOUND;
    return put_text(out, size, value);
}
EXPORT int nvmlDeviceGetName(Device *device, char *out, uint size) {
    char value[256] = "NVIDIA Stub 80GB";
    ENTER(device);
    find_gpu(device->gpu, "name", -1, value);
    return put_text(out, size, value);
}
EXPORT int nvmlDeviceGetSerial(Device *device, char *out, uint size) {
    char value[256] = "na";
    ENTER(device);
    find_gpu(device->gpu, "serial", -1, value);
    return put_text(out, size, value);
}
EXPORT int nvmlDeviceGetIndex(Device *device, uint *out) {
    ENTER(device);
    *out = (uint)device->gpu;
    return OK;
}
typedef struct { char legacy[16]; uint domain, bus, device, id, subsystem; char bus_id[32]; } Pci;
static int put_pci(const char *bus_id, Pci *out) {
    memset(out, 0, sizeof *out);
    if (sscanf(bus_id, "%x:%x:%x", &out->domain, &out->bus, &out->device) != 3) return INVALID_ARGUMENT;
    out->id = 0x233010de;
    snprintf(out->bus_id, sizeof out->bus_id, "%s", bus_id);
    snprintf(out->legacy, sizeof out->legacy, "%04X:%02X:%02X.0", out->domain & 0xffff, out->bus & 0xff,
             out->device & 0xff);
    return OK;
}
EXPORT int nvmlDeviceGetPciInfo_v3(Device *device, Pci *out) {
    char value[256];
    ENTER(device);
    bus_of(device->gpu, value);
    return put_pci(value, out);
}
EXPORT int nvmlDeviceGetCudaComputeCapability(Device *device, int *major, int *minor) {
    char value[256] = "9.0";
    u64 unused;
    ENTER(device);
    find_gpu(device->gpu, "compute_capability", -1, value);
    return sscanf(value, "%d.%d", major, minor) == 2 ? OK : parse(value, &unused);
}

/* ---- one number each ---- */

#define ONE(function, key, otherwise)                                   \
    EXPORT int function(Device *device, uint *out) {                    \
        u64 value;                                                      \
        ENTER(device);                                                  \
        int result = number(device->gpu, key, otherwise, &value);       \
        if (!result) *out = (uint)value;                                \
        return result;                                                  \
    }
ONE(nvmlDeviceGetMinorNumber, "minor", (u64)device->gpu)
ONE(nvmlDeviceGetArchitecture, "architecture", 9)
ONE(nvmlDeviceGetPerformanceState, "performance_state", 0)
ONE(nvmlDeviceGetNumaNodeId, "numa_node", 0)
ONE(nvmlDeviceGetPowerUsage, "power", 70000)
ONE(nvmlDeviceGetPowerManagementLimit, "power_limit", 700000)
ONE(nvmlDeviceGetPowerManagementDefaultLimit, "power_limit_max", 700000)
ONE(nvmlDeviceGetEnforcedPowerLimit, "enforced_power_limit", 700000)
ONE(nvmlDeviceGetComputeMode, "compute_mode", 0)
ONE(nvmlDeviceGetPersistenceMode, "persistence", 1)
ONE(nvmlDeviceGetRetiredPagesPendingStatus, "retired_pages_pending", 0)
ONE(nvmlDeviceGetCurrPcieLinkGeneration, "pcie_gen", 5)
ONE(nvmlDeviceGetMaxPcieLinkGeneration, "pcie_gen_max", 5)
ONE(nvmlDeviceGetGpuMaxPcieLinkGeneration, "pcie_gen_gpu_max", 5)
ONE(nvmlDeviceGetCurrPcieLinkWidth, "pcie_width", 16)
ONE(nvmlDeviceGetMaxPcieLinkWidth, "pcie_width_max", 16)

#define MASK(function)                                                          \
    EXPORT int function(Device *device, u64 *out) {                             \
        ENTER(device);                                                          \
        return number(device->gpu, "throttle_reasons", 1, out);                 \
    }
MASK(nvmlDeviceGetCurrentClocksThrottleReasons)
MASK(nvmlDeviceGetCurrentClocksEventReasons)

/* ---- several numbers ---- */

static int two(int gpu, const char *first, u64 a, const char *second, u64 b, uint *one, uint *other) {
    u64 x, y;
    int result = number(gpu, first, a, &x);
    if (!result) result = number(gpu, second, b, &y);
    if (!result) *one = (uint)x, *other = (uint)y;
    return result;
}
EXPORT int nvmlDeviceGetPowerManagementLimitConstraints(Device *device, uint *low, uint *high) {
    ENTER(device);
    return two(device->gpu, "power_limit_min", 200000, "power_limit_max", 700000, low, high);
}
EXPORT int nvmlDeviceGetEccMode(Device *device, uint *current, uint *pending) {
    ENTER(device);
    return two(device->gpu, "ecc", 1, "ecc_pending", 1, current, pending);
}
EXPORT int nvmlDeviceGetUtilizationRates(Device *device, uint *out) {
    ENTER(device);
    return two(device->gpu, "utilisation", 0, "memory_utilisation", 0, out, out + 1);
}
EXPORT int nvmlDeviceGetTotalEccErrors(Device *device, uint kind, uint counter, u64 *out) {
    char key[64];
    ENTER(device);
    sprintf(key, "ecc_%s_%s", kind ? "uncorrected" : "corrected", counter ? "aggregate" : "volatile");
    return number(device->gpu, key, 0, out);
}
EXPORT int nvmlDeviceGetRemappedRows(Device *device, uint *corr, uint *uncorr, uint *pending, uint *failed) {
    ENTER(device);
    int result = two(device->gpu, "remapped_correctable", 0, "remapped_uncorrectable", 0, corr, uncorr);
    return result ? result : two(device->gpu, "remap_pending", 0, "remap_failure", 0, pending, failed);
}
EXPORT int nvmlDeviceGetRetiredPages(Device *device, uint cause, uint *num, u64 *out) {
    u64 pages;
    (void)cause;
    ENTER(device);
    int result = number(device->gpu, "retired_pages", 0, &pages);
    if (result) return result;
    int fits = out && *num >= pages;
    *num = (uint)pages;
    for (u64 page = 0; fits && page < pages; page++) out[page] = page << 16;
    return fits || !pages ? OK : INSUFFICIENT_SIZE;
}
static int clock_of(Device *device, const char *prefix, uint kind, u64 otherwise, uint *out) {
    static const char *names[] = {"graphics", "sm", "mem", "video"};
    char key[64];
    u64 value;
    if (kind > 3) return INVALID_ARGUMENT;
    sprintf(key, "%s%s", prefix, names[kind]);
    int result = number(device->gpu, key, otherwise, &value);
    *out = (uint)value;
    return result;
}
EXPORT int nvmlDeviceGetClockInfo(Device *device, uint kind, uint *out) {
    ENTER(device);
    return clock_of(device, "clock_", kind, 345, out);
}
EXPORT int nvmlDeviceGetMaxClockInfo(Device *device, uint kind, uint *out) {
    ENTER(device);
    return clock_of(device, "max_clock_", kind, 1980, out);
}

typedef struct { u64 total, free, used; } Memory;
typedef struct { uint version; u64 total, reserved, free, used; } Memory2;
static int memory(int gpu, Memory2 *out) {
    int result = number(gpu, "memory_total", 80ULL << 30, &out->total);
    if (!result) result = number(gpu, "memory_reserved", 512ULL << 20, &out->reserved);
    if (!result) result = number(gpu, "memory_used", 0, &out->used);
    out->free = out->total - out->reserved - out->used;
    return result;
}
EXPORT int nvmlDeviceGetMemoryInfo(Device *device, Memory *out) {
    Memory2 whole;
    ENTER(device);
    int result = memory(device->gpu, &whole);
    *out = (Memory){whole.total, whole.free, whole.used + whole.reserved}; /* as drivers from 510 on count */
    return result;
}
EXPORT int nvmlDeviceGetMemoryInfo_v2(Device *device, Memory2 *out) {
    ENTER(device);
    return memory(device->gpu, out);
}
EXPORT int nvmlDeviceGetBAR1MemoryInfo(Device *device, Memory *out) {
    ENTER(device);
    int result = number(device->gpu, "bar1_total", 128ULL << 30, &out->total);
    if (!result) result = number(device->gpu, "bar1_used", 1 << 20, &out->used);
    out->free = out->total - out->used;
    return result;
}

static int temperature(int gpu, uint *out) {
    u64 degrees;
    int result = number(gpu, "temperature", 30, &degrees);
    *out = (uint)degrees;
    return result;
}
EXPORT int nvmlDeviceGetTemperature(Device *device, uint sensor, uint *out) {
    (void)sensor;
    ENTER(device);
    return temperature(device->gpu, out);
}
typedef struct { uint version, sensor; int degrees; } Temperature;
EXPORT int nvmlDeviceGetTemperatureV(Device *device, Temperature *out) {
    ENTER(device);
    return temperature(device->gpu, (uint *)&out->degrees);
}

typedef struct { uint field, scope; long long timestamp, latency; uint type; int result; u64 value; } Field;
EXPORT int nvmlDeviceGetFieldValues(Device *device, int num, Field *fields) {
    ENTER(device);
    for (int at = 0; at < num; at++) {
        char key[64], value[256];
        sprintf(key, "field%u", fields[at].field);
        fields[at].type = 3; /* unsigned long long */
        fields[at].result =
            find_gpu(device->gpu, key, -1, value) ? parse(value, &fields[at].value) : NOT_SUPPORTED;
    }
    return OK;
}

typedef struct { unsigned char cluster[16]; int status; uint clique, state; } Fabric;
static int fabric(int gpu, Fabric *out) {
    u64 state, status, clique;
    int result = number(gpu, "fabric_state", 0, &state);
    if (!result) result = number(gpu, "fabric_status", 0, &status);
    if (!result) result = number(gpu, "fabric_clique", 0, &clique);
    if (!result) *out = (Fabric){{0}, (int)status, (uint)clique, (uint)state};
    return result;
}
EXPORT int nvmlDeviceGetGpuFabricInfo(Device *device, Fabric *out) {
    ENTER(device);
    return fabric(device->gpu, out);
}
typedef struct { uint version; Fabric base; uint health; unsigned char summary; } FabricV;
EXPORT int nvmlDeviceGetGpuFabricInfoV(Device *device, FabricV *out) {
    u64 health;
    ENTER(device);
    int result = fabric(device->gpu, &out->base);
    if (!result) result = number(device->gpu, "fabric_health", 0, &health);
    if (!result) out->health = (uint)health;
    if (!result && out->version >> 24 >= 3) out->summary = 0;
    return result;
}

/* ---- processes ---- */

typedef struct { uint pid; u64 bytes; uint gpu_instance, compute_instance; } Process;
static int processes(Device *device, const char *kind, uint *num, Process *out) {
    char value[256], found[32], bytes[64];
    uint seen = 0, pid, room = out ? *num : 0;
    for (int nth = 0; find_gpu(device->gpu, "process", nth, value); nth++) {
        u64 unused;
        if (sscanf(value, "%u %31s %63s", &pid, found, bytes) != 3) return parse(value, &unused);
        if (strcmp(found, kind)) continue;
        if (seen < room) out[seen] = (Process){pid, NOT_AVAILABLE, ~0u, ~0u};
        if (seen < room && strcmp(bytes, "na")) out[seen].bytes = strtoull(bytes, NULL, 0);
        seen++;
    }
    *num = seen;
    return seen > room ? INSUFFICIENT_SIZE : OK;
}
EXPORT int nvmlDeviceGetComputeRunningProcesses_v3(Device *device, uint *num, Process *out) {
    ENTER(device);
    return processes(device, "compute", num, out);
}
EXPORT int nvmlDeviceGetGraphicsRunningProcesses_v3(Device *device, uint *num, Process *out) {
    ENTER(device);
    return processes(device, "graphics", num, out);
}
EXPORT int nvmlDeviceGetMPSComputeRunningProcesses_v3(Device *device, uint *num, Process *out) {
    ENTER(device);
    return processes(device, "mps", num, out);
}

/* ---- MIG ---- */

EXPORT int nvmlDeviceGetMigMode(Device *device, uint *current, uint *pending) {
    char value[256];
    ENTER(device);
    if (!find_gpu(device->gpu, "mig", -1, value)) return NOT_SUPPORTED;
    return two(device->gpu, "mig", 0, "mig_pending", strtoull(value, NULL, 0), current, pending);
}
EXPORT int nvmlDeviceGetMaxMigDeviceCount(Device *device, uint *out) {
    ENTER(device);
    *out = MAX_SLOTS - 1; /* seven on the cards that can be split */
    return OK;
}
EXPORT int nvmlDeviceGetMigDeviceHandleByIndex(Device *device, uint slot, Device **out) {
    char value[256];
    ENTER(device);
    if (slot >= MAX_SLOTS - 1) return INVALID_ARGUMENT;
    if (!find_gpu(device->gpu, "mig_device", (int)slot, value) || !strcmp(value, "none")) return NOT_FOUND;
    *out = &instances[device->gpu][slot];
    return OK;
}
EXPORT int nvmlDeviceGetDeviceHandleFromMigDeviceHandle(Device *device, Device **out) {
    ENTER(device);
    *out = &devices[device->gpu];
    return OK;
}
EXPORT int nvmlDeviceIsMigDeviceHandle(Device *device, uint *out) {
    ENTER(device);
    *out = device->slot >= 0;
    return OK;
}

/* ---- how it is wired ---- */

static int pair(int a, int b, const char *name, char *value) {
    char key[64];
    snprintf(key, sizeof key, "pair.%d-%d.%s", a < b ? a : b, a < b ? b : a, name);
    if (find(key, -1, value)) return 1;
    snprintf(key, sizeof key, "pair.*.%s", name);
    return find(key, -1, value);
}
EXPORT int nvmlDeviceGetTopologyCommonAncestor(Device *one, Device *other, uint *out) {
    static const char *names[] = {"INT", "PIX", "PXB", "PHB", "NODE", "SYS"}; /* nvmlGpuTopologyLevel_t / 10 */
    char value[256] = "SYS";
    u64 unused;
    ENTER(one);
    ENTER(other);
    pair(one->gpu, other->gpu, "ancestor", value);
    for (uint level = 0; level < 6; level++)
        if (!strcmp(value, names[level])) return *out = level * 10, OK;
    return parse(value, &unused);
}
EXPORT int nvmlDeviceGetP2PStatus(Device *one, Device *other, uint capability, uint *out) {
    char value[256] = "0";
    u64 status = 0;
    (void)capability;
    ENTER(one);
    ENTER(other);
    pair(one->gpu, other->gpu, "p2p", value);
    int result = parse(value, &status);
    *out = (uint)status;
    return result;
}

/* Where link `link` leads ("gpu1", "switch", "down"), or an error. */
static int link_target(Device *device, uint link, char *out) {
    char value[256], *at = value, *item;
    u64 unused;
    if (link >= MAX_LINKS) return INVALID_ARGUMENT;
    if (!find_gpu(device->gpu, "nvlinks", -1, value)) return NOT_SUPPORTED;
    if (!strchr(value, ':')) return parse(value, &unused);
    while ((item = strsep(&at, " ,"))) {
        uint first, last;
        char target[32];
        if (sscanf(item, "%u-%u:%31s", &first, &last, target) != 3) {
            if (sscanf(item, "%u:%31s", &first, target) != 2) continue;
            last = first;
        }
        if (first <= link && link <= last) return strcpy(out, target), OK;
    }
    return NOT_SUPPORTED;
}
EXPORT int nvmlDeviceGetNvLinkState(Device *device, uint link, uint *out) {
    char target[32];
    ENTER(device);
    int result = link_target(device, link, target);
    if (!result) *out = strcmp(target, "down") != 0;
    return result;
}
EXPORT int nvmlDeviceGetNvLinkVersion(Device *device, uint link, uint *out) {
    char target[32];
    u64 version;
    ENTER(device);
    int result = link_target(device, link, target);
    if (!result) result = number(device->gpu, "nvlink_version", 4, &version);
    if (!result) *out = (uint)version;
    return result;
}
EXPORT int nvmlDeviceGetNvLinkCapability(Device *device, uint link, uint capability, uint *out) {
    char target[32];
    (void)capability;
    ENTER(device);
    int result = link_target(device, link, target);
    if (!result) *out = 1;
    return result;
}
EXPORT int nvmlDeviceGetNvLinkRemotePciInfo_v2(Device *device, uint link, Pci *out) {
    char target[32], bus[256] = "00000000:C0:00.0"; /* an NVSwitch */
    ENTER(device);
    int result = link_target(device, link, target);
    if (result) return result;
    if (!strcmp(target, "down")) return INVALID_ARGUMENT;
    if (!strncmp(target, "gpu", 3)) bus_of(atoi(target + 3), bus);
    return put_pci(bus, out);
}
EXPORT int nvmlDeviceGetNvLinkRemoteDeviceType(Device *device, uint link, uint *out) {
    char target[32];
    ENTER(device);
    int result = link_target(device, link, target);
    if (!result) *out = !strncmp(target, "gpu", 3) ? 0 : !strcmp(target, "switch") ? 2 : 255;
    return result;
}

static int affinity(Device *device, const char *key, uint words, u64 *out) {
    char value[256] = "0", *at = value, *item;
    u64 unused;
    find_gpu(device->gpu, key, -1, value);
    if (!isdigit((unsigned char)value[0])) return parse(value, &unused);
    memset(out, 0, words * sizeof *out);
    while ((item = strsep(&at, ","))) {
        uint first, last, num = (uint)sscanf(item, "%u-%u", &first, &last);
        for (uint bit = first; num && bit <= (num == 2 ? last : first) && bit < words * 64; bit++)
            out[bit / 64] |= 1ULL << bit % 64;
    }
    return OK;
}
EXPORT int nvmlDeviceGetCpuAffinity(Device *device, uint words, u64 *out) {
    ENTER(device);
    return affinity(device, "cpu_affinity", words, out);
}
EXPORT int nvmlDeviceGetCpuAffinityWithinScope(Device *device, uint words, u64 *out, uint scope) {
    (void)scope;
    ENTER(device);
    return affinity(device, "cpu_affinity", words, out);
}
EXPORT int nvmlDeviceGetMemoryAffinity(Device *device, uint words, u64 *out, uint scope) {
    (void)scope;
    ENTER(device);
    return affinity(device, "memory_affinity", words, out);
}

/* An application in C that runs a model_ctx.onnx in stock onnxruntime, with byoc's provider and a
 * driver.
 *
 *     application ONNXRUNTIME PROVIDER MODEL OPTION VALUE EXTENT... < input > output
 *
 * The model has one float32 input and output, `x` and `y`, of the given extents. An application of one's
 * own includes onnxruntime_c_api.h; here the functions are called by their positions, as in the
 * provider.
 */
#include "ort_abi.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MOST_BYTES 65536u

typedef struct OrtEnv OrtEnv;
typedef struct OrtSession OrtSession;
typedef struct OrtRunOptions OrtRunOptions;

static const OrtApi *api;

/* End with a status' message, if it is one. */
static void require(OrtStatus *status) {
    if (status) {
        fprintf(stderr, "%s\n", ORT_CALL(api, 2, const char *, const OrtStatus *)(status));
        exit(1);
    }
}

/* Return options of a session that runs regions by a driver. */
static OrtSessionOptions *make_options(OrtEnv *env, const char *key, const char *value) {
    OrtSessionOptions *options;
    const OrtEpDevice *const *devices, *chosen = NULL;
    size_t count;
    require(ORT_CALL(api, 10, OrtStatus *, OrtSessionOptions **)(&options));
    require(ORT_CALL(api, 303, OrtStatus *, const OrtEnv *, const OrtEpDevice *const **, size_t *)(
        env, &devices, &count
    ));
    for (size_t i = 0; i < count; i++) {
        if (!strcmp(ORT_CALL(api, 312, const char *, const OrtEpDevice *)(devices[i]), "byoc")) {
            chosen = devices[i];
        }
    }
    require(ORT_CALL(
        api, 304, OrtStatus *, OrtSessionOptions *, OrtEnv *, const OrtEpDevice *const *, size_t,
        const char *const *, const char *const *, size_t
    )(options, env, &chosen, 1, &key, &value, 1));
    return options;
}

int main(int count, char **arguments) {
    static float input[MOST_BYTES / sizeof(float)];
    int64_t shape[8];
    size_t rank = 0, bytes;
    if (count < 7 || count > 14) {
        return 2;
    }
    for (int i = 6; i < count; i++) {
        shape[rank++] = strtoll(arguments[i], NULL, 10);
    }
    size_t read = fread(input, 1, sizeof input, stdin);
    void *library = dlopen(arguments[1], RTLD_NOW), *data;
    const OrtApiBase *(*get_base)(void);
    void *symbol = library ? dlsym(library, "OrtGetApiBase") : NULL;
    if (!symbol) {
        fprintf(stderr, "%s\n", dlerror());
        return 1;
    }
    memcpy(&get_base, &symbol, sizeof get_base);
    api = get_base()->get_api(ORT_VERSION);
    OrtEnv *env;
    OrtSession *session;
    void *memory;
    OrtValue *x, *y = NULL;
    require(ORT_CALL(api, 3, OrtStatus *, int, const char *, OrtEnv **)(3, "application", &env));
    require(
        ORT_CALL(api, 301, OrtStatus *, OrtEnv *, const char *, const char *)(env, "byoc", arguments[2])
    );
    OrtSessionOptions *options = make_options(env, arguments[4], arguments[5]);
    require(ORT_CALL(
        api, 7, OrtStatus *, const OrtEnv *, const char *, const OrtSessionOptions *, OrtSession **
    )(env, arguments[3], options, &session));
    require(ORT_CALL(api, 69, OrtStatus *, int, int, void **)(0, 0, &memory));
    require(ORT_CALL(
        api, 49, OrtStatus *, void *, void *, size_t, const int64_t *, size_t, int, OrtValue **
    )(memory, input, read, shape, rank, 1, &x));
    const char *names[] = {"x", "y"};
    require(ORT_CALL(
        api, 9, OrtStatus *, OrtSession *, const OrtRunOptions *, const char *const *,
        const OrtValue *const *, size_t, const char *const *, size_t, OrtValue **
    )(session, NULL, names, (const OrtValue *const *)&x, 1, names + 1, 1, &y));
    require(ort_tensor_bytes(api, y, &bytes));
    require(ort_tensor_data(api, y, &data));
    fwrite(data, 1, bytes, stdout);
    ORT_CALL(api, 96, void, OrtValue *)(x);
    ORT_CALL(api, 96, void, OrtValue *)(y);
    ORT_CALL(api, 94, void, void *)(memory);
    ORT_CALL(api, 95, void, OrtSession *)(session);
    ORT_CALL(api, 100, void, OrtSessionOptions *)(options);
    ORT_CALL(api, 92, void, OrtEnv *)(env);
    return 0;
}

/* The provider of one session, and the factory that makes it. */
#ifndef BYOC_PROVIDER_H
#define BYOC_PROVIDER_H

#include "ort_abi.h"

typedef struct provider_factory {
    OrtEpFactory base; /* first, so that onnxruntime's pointer is one to the whole */
    const OrtApi *api;
    char *name; /* by which the library was registered; the provider has it, too */
} provider_factory;

/* Return a copy of a text that the caller frees, NULL without memory. */
char *copy_text(const char *text);

/* Make the provider of a session with its settings, as OrtEpFactory has it. */
OrtStatus *create_ep(
    OrtEpFactory *factory, const OrtHardwareDevice *const *devices,
    const OrtKeyValuePairs *const *metadata, size_t count, const OrtSessionOptions *options,
    const OrtLogger *logger, OrtEp **made
);

/* Free a provider, and unload its drivers. */
void release_ep(OrtEpFactory *factory, OrtEp *ep);

#endif

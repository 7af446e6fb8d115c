/* The provider of one session: it claims the nodes of regions, and opens them. */
#include "provider.h"

#include "passed_tensors.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DRIVER_OPTION "driver."
#define FOLDER_OPTION "folder"

static const char *const NO_MEMORY = "there is no memory left";

/* An option of a session: its name without the prefix, and its value. */
typedef struct provider_option {
    char *name, *value;
    loaded_driver driver; /* of an option that names one, once it is needed */
} provider_option;

/* The provider of one session. */
typedef struct provider {
    OrtEp base;
    const OrtApi *api;
    const OrtEpApi *ep_api;
    const char *name; /* the factory's */
    size_t option_count;
    provider_option *options;
    passed_tensor *passed; /* of the graphs that it was shown */
    device_tensors *device;
} provider;

char *copy_text(const char *text) {
    char *copy = malloc(strlen(text) + 1);
    return copy ? strcpy(copy, text) : NULL;
}

static OrtStatus *get_capability(OrtEp *ep, const OrtGraph *graph, OrtEpGraphSupportInfo *info) {
    provider *self = (provider *)ep;
    const OrtNode **nodes;
    size_t count;
    OrtStatus *status = list_nodes(self->api, graph, &nodes, &count);
    for (size_t i = 0; i < count && !status; i++) {
        if (is_region(self->api, nodes[i])) {
            status = ort_claim_node(self->ep_api, info, nodes[i]);
        }
    }
    status = status ? status : find_passed_tensors(self->api, graph, nodes, count, &self->passed);
    free(nodes);
    return status;
}

static provider_option *find_option(const provider *self, const char *prefix, const char *name) {
    size_t length = strlen(prefix);
    for (size_t i = 0; i < self->option_count; i++) {
        const char *own = self->options[i].name;
        if (strncmp(own, prefix, length) == 0 && strcmp(own + length, name) == 0) {
            return &self->options[i];
        }
    }
    return NULL;
}

static OrtStatus *find_driver(
    const provider *self, const compiled_region *region, const byoc_driver **driver
) {
    const char *codegen = region->description.codegen;
    char what[MESSAGE_BYTES / 2];
    provider_option *option = find_option(self, DRIVER_OPTION, codegen);
    if (!option) {
        snprintf(what, sizeof what, "there is no driver for '%.100s'", codegen);
        return make_failure(
            self->api, region->name, what, "name its library by the option driver.CODEGEN"
        );
    }
    if (!option->driver.table) {
        const char *wrong = load_driver(option->value, codegen, &option->driver);
        if (wrong) {
            snprintf(what, sizeof what, "driver.%.100s=%.180s", codegen, option->value);
            return make_failure(self->api, region->name, what, wrong);
        }
    }
    *driver = option->driver.table;
    return NULL;
}

static OrtStatus *open_model_folder(
    const provider *self, const OrtGraph *graph, const char *name, int *folder
) {
    const provider_option *given = find_option(self, FOLDER_OPTION, "");
    const char *path = NULL;
    if (given) {
        *folder = open_folder(given->value);
        return *folder < 0
                   ? make_failure(self->api, name, given->value, "it is no folder that can be read")
                   : NULL;
    }
    OrtStatus *status = ort_model_path(self->api, graph, &path);
    if (status) {
        return status;
    }
    if (!path || !*path) {
        return make_failure(
            self->api, name, "",
            "the model was given as bytes; say by the option folder where its bundle is"
        );
    }
    *folder = open_folder_of(path);
    return *folder < 0 ? make_failure(self->api, name, path, "its folder cannot be read") : NULL;
}

/* Make the region of a node. The caller releases `*made`, also after a failure. */
static OrtStatus *compile_node(
    provider *self, const OrtGraph *graph, const OrtNode *node, const OrtNode *fused,
    compiled_region **made
) {
    const OrtApi *api = self->api;
    const char *name = "";
    int folder = -1;
    OrtStatus *status = ort_node_get_text(api, ORT_NODE_NAME, node, &name);
    if (status) {
        return status;
    }
    char *bytes = read_text_attribute(api, node, "ep_cache_context");
    if (!bytes) {
        return make_failure(api, name, "", "its node does not describe its region");
    }
    size_t count = decode_digits(bytes, strlen(bytes));
    status = make_region(api, name, (const uint8_t *)bytes, count, made);
    free(bytes);
    if (status) {
        return status;
    }
    compiled_region *region = *made;
    const region_description *described = &region->description;
    status = find_positions(
        api, node, fused, ORT_NODE_INPUTS, region->name, described->inputs, described->input_count,
        region->input_positions
    );
    status = status ? status
                    : find_positions(
                          api, node, fused, ORT_NODE_OUTPUTS, region->name, described->outputs,
                          described->output_count, region->output_positions
                      );
    const byoc_driver *driver = NULL;
    status = status ? status : find_driver(self, region, &driver);
    status = status ? status : open_model_folder(self, graph, region->name, &folder);
    status = status ? status : open_compiled_region(region, folder, driver);
    status = status ? status : mark_passed_tensors(api, node, self->passed, region);
    if (!status) {
        use_device(region, self->device);
    }
    close_folder(folder);
    return status;
}

static void release_infos(OrtEp *ep, OrtNodeComputeInfo **infos, size_t count) {
    (void)ep;
    for (size_t i = 0; i < count; i++) {
        release_region((compiled_region *)infos[i]);
        infos[i] = NULL;
    }
}

static OrtStatus *compile(
    OrtEp *ep, const OrtGraph **graphs, const OrtNode **fused, size_t count, OrtNodeComputeInfo **infos,
    OrtNode **context_nodes
) {
    provider *self = (provider *)ep;
    OrtStatus *status = NULL;
    (void)context_nodes; /* the model has them already */
    memset(infos, 0, count * sizeof *infos);
    for (size_t i = 0; i < count && !status; i++) {
        const OrtNode **nodes;
        size_t node_count = 0;
        compiled_region *made = NULL;
        status = list_nodes(self->api, graphs[i], &nodes, &node_count);
        if (!status && node_count != 1) {
            status =
                make_failure(self->api, "compile", "", "onnxruntime joined nodes that are to be alone");
        }
        status = status ? status : compile_node(self, graphs[i], nodes[0], fused[i], &made);
        free(nodes);
        infos[i] = made ? &made->base : NULL;
    }
    if (status) {
        release_infos(ep, infos, count);
    }
    return status;
}

static const char *get_provider_name(const OrtEp *ep) {
    return ((const provider *)ep)->name;
}

/* Return what follows "ep.NAME." in the name of a setting, NULL for a setting of something else. */
static const char *strip_prefix(const char *key, const char *name) {
    if (strncmp(key, "ep.", 3) != 0) {
        return NULL;
    }
    for (key += 3; *name; key++, name++) {
        if (tolower((unsigned char)*key) != tolower((unsigned char)*name)) {
            return NULL;
        }
    }
    return *key == '.' ? key + 1 : NULL;
}

/* Copy the settings of a session that are the provider's. Returns 0 without memory. */
static int copy_options(
    provider *self, const char *const *keys, const char *const *values, size_t count
) {
    self->options = calloc(count + 1, sizeof *self->options);
    for (size_t i = 0; self->options && i < count; i++) {
        const char *name = strip_prefix(keys[i], self->name);
        if (!name) {
            continue;
        }
        provider_option *option = &self->options[self->option_count++];
        option->name = copy_text(name);
        option->value = copy_text(values[i]);
        if (!option->name || !option->value) {
            return 0;
        }
    }
    return self->options != NULL;
}

void release_ep(OrtEpFactory *factory, OrtEp *ep) {
    provider *self = (provider *)ep;
    (void)factory;
    if (self) {
        free_passed_tensors(self->passed);
        release_device_tensors(self->device); /* before its buffers' drivers are gone */
    }
    for (size_t i = 0; self && i < self->option_count; i++) {
        unload_driver(&self->options[i].driver);
        free(self->options[i].name);
        free(self->options[i].value);
    }
    if (self) {
        free(self->options);
    }
    free(self);
}

OrtStatus *create_ep(
    OrtEpFactory *factory, const OrtHardwareDevice *const *devices,
    const OrtKeyValuePairs *const *metadata, size_t count, const OrtSessionOptions *options,
    const OrtLogger *logger, OrtEp **made
) {
    const provider_factory *from = (const provider_factory *)factory;
    (void)devices;
    (void)metadata;
    (void)count;
    (void)logger;
    *made = NULL;
    provider *self = calloc(1, sizeof *self);
    if (!self) {
        return make_failure(from->api, from->name, "", NO_MEMORY);
    }
    self->base.version = ORT_VERSION;
    self->base.get_name = get_provider_name;
    self->base.get_capability = get_capability;
    self->base.compile = compile;
    self->base.release_infos = release_infos;
    self->api = from->api;
    self->ep_api = ort_get_ep_api(from->api);
    self->name = from->name;
    self->device = make_device_tensors();
    OrtKeyValuePairs *pairs = NULL;
    const char *const *keys = NULL, *const *values = NULL;
    size_t pair_count = 0;
    OrtStatus *status = self->device ? ort_get_settings(from->api, options, &pairs)
                                     : make_failure(from->api, from->name, "", NO_MEMORY);
    if (!status) {
        ort_list_pairs(from->api, pairs, &keys, &values, &pair_count);
        if (!copy_options(self, keys, values, pair_count)) {
            status = make_failure(from->api, from->name, "", NO_MEMORY);
        }
        ort_release_pairs(from->api, pairs);
    }
    if (status) {
        release_ep(factory, &self->base);
        return status;
    }
    *made = &self->base;
    return NULL;
}

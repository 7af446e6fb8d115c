/* Reading of nodes, through onnxruntime's functions. */
#include "graph_nodes.h"

#include <stdlib.h>
#include <string.h>

static const char *const NO_MEMORY = "there is no memory left";

char *read_text_attribute(const OrtApi *api, const OrtNode *node, const char *name) {
    const OrtOpAttr *attribute = NULL;
    size_t needed = 0, read = 0;
    OrtStatus *status = ort_find_attribute(api, node, name, &attribute);
    if (status || !attribute) {
        if (status) {
            ort_release_status(api, status);
        }
        return NULL;
    }
    status = ort_read_attribute(api, attribute, ORT_ATTRIBUTE_STRING, NULL, 0, &needed);
    if (status) { /* it says how much it needs */
        ort_release_status(api, status);
    }
    char *text = calloc(1, needed + 1);
    if (!text) {
        return NULL;
    }
    status = ort_read_attribute(api, attribute, ORT_ATTRIBUTE_STRING, text, needed, &read);
    if (status || read > needed) {
        if (status) {
            ort_release_status(api, status);
        }
        free(text);
        return NULL;
    }
    return text;
}

static int has_text(const OrtApi *api, const OrtNode *node, ort_node_text which, const char *expected) {
    const char *text = NULL;
    OrtStatus *status = ort_node_get_text(api, which, node, &text);
    if (status) {
        ort_release_status(api, status);
        return 0;
    }
    return text && strcmp(text, expected) == 0;
}

int is_region(const OrtApi *api, const OrtNode *node) {
    if (!has_text(api, node, ORT_NODE_OPERATOR, "EPContext") ||
        !has_text(api, node, ORT_NODE_DOMAIN, "com.microsoft")) {
        return 0;
    }
    char *source = read_text_attribute(api, node, "source");
    int is_own = source && strcmp(source, "byoc") == 0;
    free(source);
    return is_own;
}

OrtStatus *list_nodes(const OrtApi *api, const OrtGraph *graph, const OrtNode ***nodes, size_t *count) {
    *nodes = NULL;
    OrtStatus *status = ort_node_count(api, graph, count);
    if (status) {
        return status;
    }
    *nodes = calloc(*count + 1, sizeof **nodes);
    return *nodes ? ort_list_nodes(api, graph, *nodes, *count)
                  : make_failure(api, "nodes", "", NO_MEMORY);
}

OrtStatus *list_values(
    const OrtApi *api, const OrtNode *node, ort_node_side side, node_values *found
) {
    found->values = NULL;
    OrtStatus *status = ort_count_values(api, side, node, &found->count);
    if (status) {
        return status;
    }
    found->values = calloc(found->count + 1, sizeof *found->values);
    if (!found->values) {
        return make_failure(api, "values", "", NO_MEMORY);
    }
    return ort_list_values(api, side, node, found->values, found->count);
}

/* Find a value among others by its name; NOWHERE if it is none of them. */
static OrtStatus *find_value(
    const OrtApi *api, const OrtValueInfo *value, const node_values *among, size_t *position
) {
    const char *name = NULL, *other = NULL;
    *position = NOWHERE;
    OrtStatus *status = value ? ort_value_name(api, value, &name) : NULL;
    for (size_t i = 0; i < among->count && name && !status && *position == NOWHERE; i++) {
        status = among->values[i] ? ort_value_name(api, among->values[i], &other) : NULL;
        if (!status && other && strcmp(name, other) == 0) {
            *position = i;
        }
        other = NULL;
    }
    return status;
}

/* Compare a value of the model with a tensor of the region. `*differs` is a sentence where they differ.
 */
static OrtStatus *compare_type(
    const OrtApi *api, const OrtValueInfo *value, const byoc_tensor *tensor, const char **differs
) {
    const OrtTypeInfo *type = NULL;
    const OrtTensorTypeAndShapeInfo *shaped = NULL;
    int64_t shape[64];
    int element = 0;
    size_t rank = 0;
    OrtStatus *status = ort_value_type(api, value, &type);
    status = status || !type ? status : ort_tensor_type(api, type, &shaped);
    if (status) {
        return status;
    }
    if (!shaped) {
        *differs = "the model has something else than a tensor there";
        return NULL;
    }
    status = ort_element_type(api, shaped, &element);
    status = status ? status : ort_rank(api, shaped, &rank);
    if (status) {
        return status;
    }
    if (element != tensor->dtype) {
        *differs = "the model has another type of elements there than the region";
    } else if (rank == (size_t)tensor->rank) {
        status = ort_shape(api, shaped, shape, rank);
        for (size_t i = 0; i < rank && !status; i++) {
            if (shape[i] >= 0 && shape[i] != tensor->shape[i]) {
                *differs = "the model has another shape there than the region";
            }
        }
    } else if (rank) { /* rank 0 also stands for a rank that is not known */
        *differs = "the model has another rank there than the region";
    }
    return status;
}

OrtStatus *find_positions(
    const OrtApi *api, const OrtNode *node, const OrtNode *fused, ort_node_side side, const char *name,
    const byoc_tensor *tensors, size_t count, size_t *positions
) {
    node_values own = {NULL, 0}, passed = {NULL, 0};
    const char *differs = NULL;
    OrtStatus *status = list_values(api, node, side, &own);
    status = status ? status : list_values(api, fused, side, &passed);
    if (!status && own.count != count) {
        status = make_failure(api, name, "", "its node has other inputs or outputs than the region");
    }
    for (size_t i = 0; i < count && !status; i++) {
        status = find_value(api, own.values[i], &passed, &positions[i]);
        if (!status && positions[i] == NOWHERE && side == ORT_NODE_INPUTS) {
            status = make_failure(api, name, tensors[i].name, "the input is not given");
        }
        if (!status && own.values[i]) {
            status = compare_type(api, own.values[i], &tensors[i], &differs);
        }
        if (!status && differs) {
            status = make_failure(api, name, tensors[i].name, differs);
        }
    }
    free(own.values);
    free(passed.values);
    return status;
}
